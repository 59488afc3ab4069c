// Formats a run's memory and traffic, planned and measured.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/memory.h>
#include <fsdp/plan.h>
#include <fsdp/traffic.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "bert_qa/run/train_log.h"

namespace bert_qa {

// Returns a table of one rank's engine buffers: for each category the planned and measured bytes,
// between steps and at the highest point of a step.
std::string planned_and_measured(const fsdp::MemoryPlan& plan, const fsdp::MemoryBytes& rest,
                                 const fsdp::MemoryBytes& peak);

// Returns the planned memory and traffic of a rank for a step of one micro-batch, beside the bytes
// that a step of `micro_batches` sent and this process's peak of resident memory.
std::string planned_and_taken(const fsdp::StepPlan& plan, const fsdp::Traffic& sent,
                              int64_t micro_batches);

// A quantity of bytes.
struct Amount {
  std::string_view of;  // "at rest"
  int64_t planned_bytes = 0;
  int64_t measured_bytes = 0;
};

// Returns "45.3 MiB at rest, 88.1 MiB at peak, as planned", or with the differences: "45.3 MiB at
// rest, 88.1 MiB at peak (1.0 MiB over plan), else as planned".
std::string beside_plan(std::span<const Amount> amounts);

// Returns one line with the memory and traffic of a step on this rank, beside the plan of one
// micro-batch.
std::string measured_line(const fsdp::Engine& engine, const fsdp::StepPlan& plan,
                          const StepRecord& record, int64_t micro_batches);

// Memory of the rank that used most.
struct DeviceUse {
  int64_t planned_bytes = 0;   // StepPlan::peak_bytes
  int64_t measured_bytes = 0;  // MemoryStats::device_peak of a step
  int64_t limit_bytes = 0;
  bool engine_as_planned = false;  // the engine's buffers, to the byte, on every rank
  // Offloaded bytes; 0 without offload.
  int64_t planned_host_bytes = 0;
  int64_t measured_host_bytes = 0;
};

// Returns the lines of a run with a memory limit: "device: planned 3.1 GiB, measured 3.0 GiB (1.2 %
// less), limit 4.0 GiB", the comparison of the engine's buffers, and the host's bytes if there are
// any.
std::string device_use(const DeviceUse& use);

// Returns this process's peak of resident memory so far; 0 if the system does not report it.
int64_t peak_resident_bytes();

}  // namespace bert_qa
