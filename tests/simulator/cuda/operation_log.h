// All issued work, and the order between its pieces.
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
  std::string name;    // the kernel's name, "copy", "set", or a test's name
  int64_t number = 0;  // among those of its name on its stream, from 1
  const SimulatedStream* stream = nullptr;
  uint64_t tick = 0;  // its stream's tick
  Clock clock;        // the work that has ended when it starts, and itself
  // Returns text like "adamw #2 on compute".
  std::string text() const;
};

// References to operations stay valid.
class OperationLog {
 public:
  // Requires: the stream's clock has ticked for the operation.
  const Operation& add(std::string name, const SimulatedStream& stream);
  // Gives the stream's last operation a further name: "gather of unit 2".
  // Errors: InvalidArgument if there is none.
  void label(const SimulatedStream& stream, std::string_view name);
  // Finds "NAME #N on STREAM", or a label. Errors: InvalidArgument with all known operations.
  const Operation& find(std::string_view text) const;

  const std::deque<Operation>& all() const { return operations_; }

 private:
  std::deque<Operation> operations_;
  std::map<std::string, const Operation*, std::less<>> labels_;
  std::map<std::pair<const SimulatedStream*, std::string>, int64_t> counts_;
};

// Returns true if `first` ends before `then` starts, at any speed of the streams.
bool happens_before(const Operation& first, const Operation& then);

}  // namespace fsdp::testing::sim
