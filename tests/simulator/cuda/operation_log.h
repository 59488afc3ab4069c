// All work that was issued, and what of it is in order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "simulator/cuda/clock.h"
#include "simulator/cuda/stream_queues.h"

namespace fsdp::testing::sim {

struct Operation {
  std::string name;    // of the kernel, or "copy", "set", or what a test called it
  int64_t number = 0;  // among those of its name on its stream, from 1
  const SimulatedStream* stream = nullptr;
  uint64_t tick = 0;  // of its stream
  Clock clock;        // what is over when it starts, and itself
  // "adamw #2 on compute"
  std::string text() const;
};

// Operations stay where they are.
class OperationLog {
 public:
  // The stream's clock has ticked for it.
  const Operation& add(std::string name, const SimulatedStream& stream);
  // The stream's last operation is called so from now on: "gather of unit 2".
  // Errors: InvalidArgument if there is none.
  void label(const SimulatedStream& stream, std::string_view name);
  // `text` is "NAME #N on STREAM", or a label. Errors: InvalidArgument with all that there are.
  const Operation& find(std::string_view text) const;

  const std::deque<Operation>& all() const { return operations_; }

 private:
  std::deque<Operation> operations_;
  std::map<std::string, const Operation*, std::less<>> labels_;
  std::map<std::pair<const SimulatedStream*, std::string>, int64_t> counts_;
};

// `first` is over before `then` starts, whatever the streams' speeds.
bool happens_before(const Operation& first, const Operation& then);

}  // namespace fsdp::testing::sim
