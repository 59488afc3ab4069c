// The loopback of fsdp-doctor: tries the operations that ranks use on GPUs.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

namespace fsdp::doctor {

// Runs each rank in its own thread. A rank copies values to its device, doubles them with a kernel
// and copies them back. If there are several ranks, they then gather all values and reduce the
// gathered values. All results are compared with the expected values. Element r of `ranks` is the
// mesh of rank r. The call destroys the meshes.
// Errors: the exception of the rank that failed first; DeviceError for a wrong value, which names
//   the device, the element and both values.
void run_loopback(std::vector<Mesh> ranks);

}  // namespace fsdp::doctor
