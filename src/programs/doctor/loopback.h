// A trial of what ranks do on GPUs.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

namespace fsdp::doctor {

// Each rank, in a thread of its own, copies values to its device, doubles them by a kernel, and
// copies them back; several ranks then gather them all, and reduce what they gathered. All values
// are compared. Element r of `ranks` is rank r's; they end here.
// Errors: what the rank threw that failed first; DeviceError for a value that is wrong, naming
//   device, element and both values.
void run_loopback(std::vector<Mesh> ranks);

}  // namespace fsdp::doctor
