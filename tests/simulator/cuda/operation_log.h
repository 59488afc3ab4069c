// All issued operations, and the order between them.
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
  int64_t number = 0;  // number among the operations of its name on its stream, from 1
  const SimulatedStream* stream = nullptr;
  uint64_t tick = 0;  // the stream's tick of this operation
  Clock clock;        // all work that has ended when it starts, and itself
  // Returns text such as "adamw #2 on compute".
  std::string text() const;
};

// References to operations remain valid.
class OperationLog {
 public:
  // Requires: the stream's clock was advanced for this operation.
  const Operation& add(std::string name, const SimulatedStream& stream);
  // Adds a label, such as "gather of unit 2", to the stream's last operation. Errors:
  // InvalidArgument if the stream has no operation.
  void label(const SimulatedStream& stream, std::string_view name);
  // Returns the operation for a label or for "NAME #N on STREAM". Errors: InvalidArgument, with a
  // list of all known operations.
  const Operation& find(std::string_view text) const;

  const std::deque<Operation>& all() const { return operations_; }

 private:
  std::deque<Operation> operations_;
  std::map<std::string, const Operation*, std::less<>> labels_;
  std::map<std::pair<const SimulatedStream*, std::string>, int64_t> counts_;
};

// Returns true if `first` ends before `then` starts, for any speed of the streams.
bool happens_before(const Operation& first, const Operation& then);

}  // namespace fsdp::testing::sim
