// Formats the planned and the measured memory and traffic of a run.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/memory.h>
#include <fsdp/plan.h>
#include <fsdp/traffic.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "training/step_record.h"

namespace bert_qa {

// Returns a table of one rank's engine buffers. For each category it has the planned and the
// measured bytes, both between steps and at the peak of a step.
std::string planned_and_measured(const fsdp::MemoryPlan& plan, const fsdp::MemoryBytes& rest,
                                 const fsdp::MemoryBytes& peak);

// Returns the planned memory and traffic of a rank for a step of one micro-batch. Beside them it
// shows the bytes that a step of `micro_batches` sent and the peak of this process's resident
// memory.
std::string planned_and_taken(const fsdp::StepPlan& plan, const fsdp::Traffic& sent,
                              int64_t micro_batches);

// A number of planned and measured bytes.
struct Amount {
  std::string_view of;  // "at rest"
  int64_t planned_bytes = 0;
  int64_t measured_bytes = 0;
};

// Returns "45.3 MiB at rest, 88.1 MiB at peak, as planned". If amounts differ from the plan,
// returns for example "45.3 MiB at rest, 88.1 MiB at peak (1.0 MiB over plan), else as planned".
std::string beside_plan(std::span<const Amount> amounts);

// Returns one line that compares the memory and traffic of a step on this rank with the plan of one
// micro-batch.
std::string measured_line(const fsdp::Engine& engine, const fsdp::StepPlan& plan,
                          const training::StepRecord& record, int64_t micro_batches);

// The memory of the rank that used the most.
struct DeviceUse {
  int64_t planned_bytes = 0;   // StepPlan::peak_bytes
  int64_t measured_bytes = 0;  // MemoryStats::device_peak of a step
  int64_t limit_bytes = 0;
  bool engine_as_planned = false;  // engine buffers on every rank equal the plan to the byte
  // The bytes of offloaded state on the host. 0 without offload.
  int64_t planned_host_bytes = 0;
  int64_t measured_host_bytes = 0;
};

// Returns the lines for a run with a memory limit. They contain "device: planned 3.1 GiB, measured
// 3.0 GiB (1.2 % less), limit 4.0 GiB", the comparison of the engine's buffers, and the host's
// bytes if there are any.
std::string device_use(const DeviceUse& use);

// Returns the peak of this process's resident memory so far, or 0 if the system does not report it.
int64_t peak_resident_bytes();

}  // namespace bert_qa
