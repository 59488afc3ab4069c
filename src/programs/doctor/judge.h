// Judges the facts about a machine. All functions are pure.
#pragma once

#include <fsdp/mesh.h>

#include <optional>
#include <string>
#include <vector>

#include "programs/doctor/facts.h"
#include "programs/doctor/finding.h"

namespace fsdp::doctor {

// Returns the reason why no GPU can be used, or nothing if one can be used.
std::optional<ErrorText> why_no_gpu(const CudaFacts& cuda);
// Returns the reason of why_no_gpu with further facts about the host. The text always has a hint.
// Requires: why_no_gpu returns a reason.
ErrorText explain_no_gpu(const Facts& facts);
// Returns the reason why the loopback cannot run, or an empty string if it can.
std::string why_no_loopback(const CudaFacts& cuda);

// Returns the findings. `device` is the device on which runs on this machine compute. With kCuda, a
// missing GPU is not a finding but an error of the program. With kAuto, runs use the CPU if there
// is no GPU. With kCpu, only the requirements of the CPU are checked.
std::vector<Finding> judge(const Facts& facts, DeviceKind device);

// The result that fsdp-doctor prints last and returns as its exit code.
struct Verdict {
  int code = 0;      // exit code: 0; 1 if a finding fails; 78 without a usable GPU
  std::string line;  // last line for the user; empty for 78, which has an error line
};
Verdict verdict_of(const Facts& facts, DeviceKind device, const std::vector<Finding>& findings);

// The functions that judge calls.
std::vector<Finding> judge_host(const Facts& facts, DeviceKind device);
std::vector<Finding> judge_environment(const Facts& facts, DeviceKind device);
std::vector<Finding> judge_gpus(const Facts& facts, DeviceKind device);

}  // namespace fsdp::doctor
