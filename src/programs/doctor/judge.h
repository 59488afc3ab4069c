// Judges the facts about a machine. All functions are pure.
#pragma once

#include <fsdp/mesh.h>

#include <optional>
#include <string>
#include <vector>

#include "programs/doctor/facts.h"
#include "programs/doctor/finding.h"

namespace fsdp::doctor {

// Returns why no GPU can be used, or nothing if one can.
std::optional<ErrorText> why_no_gpu(const CudaFacts& cuda);
// Returns the same reason with facts of the host and always with a hint. Requires: there is a
// reason.
ErrorText explain_no_gpu(const Facts& facts);
// Returns why the loopback cannot run, or an empty string if it can.
std::string why_no_loopback(const CudaFacts& cuda);

// Returns the findings. `device` is the device of the runs on this machine. kCuda: a lacking GPU is
// the program's error, not a finding. kAuto: runs use the CPU if there is no GPU. kCpu: only the
// CPU's needs are checked.
std::vector<Finding> judge(const Facts& facts, DeviceKind device);

// The end of the program.
struct Verdict {
  int code = 0;      // exit code: 0, 1 if a finding fails, 78 without a GPU
  std::string line;  // the last line for the user; empty with 78, which has an error line
};
Verdict verdict_of(const Facts& facts, DeviceKind device, const std::vector<Finding>& findings);

// The parts of judge.
std::vector<Finding> judge_host(const Facts& facts, DeviceKind device);
std::vector<Finding> judge_environment(const Facts& facts, DeviceKind device);
std::vector<Finding> judge_gpus(const Facts& facts, DeviceKind device);

}  // namespace fsdp::doctor
