// Machines that are made up, and what fsdp-doctor says about them.
#pragma once

#include <fsdp/mesh.h>

#include <string>
#include <string_view>
#include <vector>

#include "programs/doctor/facts.h"
#include "programs/doctor/finding.h"
#include "programs/doctor/judge.h"

namespace fsdp::testing {

// With nothing to say against it: as many GPUs, of which each reaches the others, and a loopback
// that went well.
doctor::Facts sound_machine(int gpus);
// With a driver's reason and hint.
doctor::Facts machine_without_gpu();

// "driver ok 580.65.06, …" and "  remedy: …", a line each.
std::vector<std::string> lines_of(const std::vector<doctor::Finding>& findings);
std::vector<std::string> lines_of(const doctor::Facts& facts, DeviceKind device);

// The lines that do not begin with "AREA ok", of which those of a sound machine alone consist.
std::vector<std::string> objections_to(const doctor::Facts& facts,
                                       DeviceKind device = DeviceKind::kCuda);

int code_of(const doctor::Facts& facts, DeviceKind device = DeviceKind::kCuda);

}  // namespace fsdp::testing
