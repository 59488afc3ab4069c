// Functions that invent machines, and return the lines that fsdp-doctor prints about them.
#pragma once

#include <fsdp/mesh.h>

#include <string>
#include <string_view>
#include <vector>

#include "programs/doctor/facts.h"
#include "programs/doctor/finding.h"
#include "programs/doctor/judge.h"

namespace fsdp::testing {

// Returns a machine without a fault. It has `gpus` GPUs that can all access each other, and its
// loopback test passed.
doctor::Facts sound_machine(int gpus);
// Returns a machine with no GPU, and with the driver's reason and a hint.
doctor::Facts machine_without_gpu();

// Returns the printed lines, for example "driver ok 580.65.06, …" and " remedy: …".
std::vector<std::string> lines_of(const std::vector<doctor::Finding>& findings);
std::vector<std::string> lines_of(const doctor::Facts& facts, DeviceKind device);

// Returns the lines that do not begin with "AREA ok". The list is empty for a sound machine.
std::vector<std::string> objections_to(const doctor::Facts& facts,
                                       DeviceKind device = DeviceKind::kCuda);

int code_of(const doctor::Facts& facts, DeviceKind device = DeviceKind::kCuda);

}  // namespace fsdp::testing
