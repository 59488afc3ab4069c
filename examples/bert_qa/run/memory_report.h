// Memory and bytes on the wire of a run in words: what the plan said and what was measured.
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

// A row a category: at rest and at the highest point of a step, planned beside measured. Engine
// buffers of one rank.
std::string planned_and_measured(const fsdp::MemoryPlan& plan, const fsdp::MemoryBytes& rest,
                                 const fsdp::MemoryBytes& peak);

// What a rank was planned to take and to send in a step of one micro-batch, beside what a step of
// so many has sent and the most that this process has had resident, its program included.
std::string planned_and_taken(const fsdp::StepPlan& plan, const fsdp::Traffic& sent,
                              int64_t micro_batches);

struct Amount {
  std::string_view of;  // "at rest"
  int64_t planned_bytes = 0;
  int64_t measured_bytes = 0;
};

// "45.3 MiB at rest, 88.1 MiB at peak, as planned", or what was not: "45.3 MiB at rest, 88.1 MiB at
// peak (1.0 MiB over plan), else as planned".
std::string beside_plan(std::span<const Amount> amounts);

// What a step of so many micro-batches took on this rank, beside the plan of one.
std::string measured_line(const fsdp::Engine& engine, const fsdp::StepPlan& plan,
                          const StepRecord& record, int64_t micro_batches);

// Of the rank that took most.
struct DeviceUse {
  int64_t planned_bytes = 0;   // StepPlan::peak_bytes
  int64_t measured_bytes = 0;  // MemoryStats::device_peak of a step
  int64_t limit_bytes = 0;
  bool engine_as_planned = false;  // its buffers, to the byte, on every rank
  // What is offloaded; 0 without.
  int64_t planned_host_bytes = 0;
  int64_t measured_host_bytes = 0;
};

// Under a memory limit: "device: planned 3.1 GiB, measured 3.0 GiB (1.2 % less), limit 4.0 GiB",
// whether the engine's part is the plan's, and the host's bytes where there are any.
std::string device_use(const DeviceUse& use);

// The most memory that this process has had resident so far, whatever for; 0 where the system does
// not tell.
int64_t peak_resident_bytes();

}  // namespace bert_qa
