// Gathers facts about this machine from the system.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "programs/doctor/facts.h"

namespace fsdp::doctor {

// Gathers the facts about this machine and process.
// Requires: no code has set a variable for CUDA or NCCL yet; SIGXFSZ is ignored, because a limit on
//   file sizes is reported as a finding.
HostFacts gather_host();

// The functions that gather_host calls.
SharedFolderFacts gather_shared_folder(const std::filesystem::path& folder);
LimitFacts gather_limits();
MemoryFacts gather_memory();
// Resolves `name` within `limit`, because a resolver may ask servers that do not answer.
MasterFacts gather_master(const std::string& name, std::chrono::milliseconds limit);
std::optional<ErrorText> try_job_memory();
// Returns the variables of `environment` that affect a GPU or the number of threads, sorted by
// name. `environment` has the format of `environ`.
std::vector<Variable> variables_of(const char* const* environment);
// Returns "580.65.06" from the text of /proc/driver/nvidia/version, or an empty string.
std::string driver_version_in(std::string_view text);

}  // namespace fsdp::doctor
