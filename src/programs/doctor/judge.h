// From what is known of a machine to what is said about it. Pure functions.
#pragma once

#include <fsdp/mesh.h>

#include <optional>
#include <string>
#include <vector>

#include "programs/doctor/facts.h"
#include "programs/doctor/finding.h"

namespace fsdp::doctor {

// Why no GPU can be used; empty where one can.
std::optional<ErrorText> why_no_gpu(const CudaFacts& cuda);
// The same for people, with what to do about it. Requires: there is a reason.
ErrorText explain_no_gpu(const Facts& facts);
// Why it is no use to try what the GPUs compute and send; empty where it is.
std::string why_no_loopback(const CudaFacts& cuda);

// `device`: what runs on this machine are to compute on. kCuda: that there is no GPU is the
// program's error and no finding; kAuto: they go on with the CPU then; kCpu: only what the CPU
// needs is looked at.
std::vector<Finding> judge(const Facts& facts, DeviceKind device);

struct Verdict {
  int code = 0;      // the program's exit code: 0, 1 where a finding fails, 78 without a GPU
  std::string line;  // for people; with 78 it is the error's to say
};
Verdict verdict_of(const Facts& facts, DeviceKind device, const std::vector<Finding>& findings);

// Its parts.
std::vector<Finding> judge_host(const Facts& facts, DeviceKind device);
std::vector<Finding> judge_environment(const Facts& facts, DeviceKind device);
std::vector<Finding> judge_gpus(const Facts& facts, DeviceKind device);

}  // namespace fsdp::doctor
