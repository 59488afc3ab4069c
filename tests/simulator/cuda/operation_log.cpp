#include "simulator/cuda/operation_log.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include <algorithm>

namespace fsdp::testing::sim {

std::string Operation::text() const {
  return fmt::format("{} #{} on {}", name, number, stream->name);
}

const Operation& OperationLog::add(std::string name, const SimulatedStream& stream) {
  const int64_t number = ++counts_[{&stream, name}];
  operations_.push_back({.name = std::move(name),
                         .number = number,
                         .stream = &stream,
                         .tick = stream.clock.of(stream.number),
                         .clock = stream.clock});
  return operations_.back();
}

void OperationLog::label(const SimulatedStream& stream, std::string_view name) {
  const auto last = std::find_if(operations_.rbegin(), operations_.rend(),
                                 [&](const Operation& it) { return it.stream == &stream; });
  if (last == operations_.rend()) {
    throw InvalidArgument(
        {.what = fmt::format("no operation on {} to call '{}'", stream.name, name),
         .hint = "an operation is labelled once it was issued"});
  }
  labels_[std::string(name)] = &*last;
}

const Operation& OperationLog::find(std::string_view text) const {
  if (const auto found = labels_.find(text); found != labels_.end()) return *found->second;
  for (const Operation& each : operations_) {
    if (each.text() == text) return each;
  }
  std::string known;
  for (const auto& [label, operation] : labels_) known += fmt::format(" '{}'", label);
  for (const Operation& each : operations_) known += fmt::format(" '{}'", each.text());
  throw InvalidArgument({.what = fmt::format("no operation '{}'", text),
                         .hint = fmt::format("there are{}", known.empty() ? " none" : known)});
}

bool happens_before(const Operation& first, const Operation& then) {
  return &first != &then && then.clock.of(first.stream->number) >= first.tick;
}

}  // namespace fsdp::testing::sim
