// Asks the system about this machine.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "programs/doctor/facts.h"

namespace fsdp::doctor {

// Of this machine and process. To be called before anything sets a variable for CUDA or NCCL, and
// with SIGXFSZ ignored: a limit of file sizes is a finding.
HostFacts gather_host();

// Its parts.
SharedFolderFacts gather_shared_folder(const std::filesystem::path& folder);
LimitFacts gather_limits();
MemoryFacts gather_memory();
// Gives up after `limit`: a resolver may ask servers that do not answer.
MasterFacts gather_master(const std::string& name, std::chrono::milliseconds limit);
std::optional<ErrorText> try_job_memory();
// Of `environment`, as `environ` has it: those that change what happens on a GPU, or how many
// threads compute; sorted.
std::vector<Variable> variables_of(const char* const* environment);
// From the text of /proc/driver/nvidia/version: "580.65.06"; empty if there is none in it.
std::string driver_version_in(std::string_view text);

}  // namespace fsdp::doctor
