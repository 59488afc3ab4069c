// Runs a CPU kernel over a table in stream order.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "runtime/cpu/cpu_stream.h"

namespace fsdp::kernels::cpu {

// Calls task(table) in stream order. A threaded stream gets its own copy of the table, because the
// caller may free its table before the task runs. An inline stream reads the caller's table.
// Errors: StateError if the stream is not a CPU stream.
template <class Item, class Task>
void run_over_table(Stream& stream, std::span<const Item> table, Task task) {
  CpuStream& cpu = cpu_stream(stream);
  if (cpu.is_inline()) {
    cpu.run([&] { task(table); });
    return;
  }
  cpu.run([task = std::move(task), copy = std::vector<Item>(table.begin(), table.end())] {
    task(std::span<const Item>(copy));
  });
}

}  // namespace fsdp::kernels::cpu
