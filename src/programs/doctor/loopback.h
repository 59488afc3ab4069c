// Tries the work that ranks do on GPUs.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

namespace fsdp::doctor {

// Runs each rank in its own thread: it copies values to its device, doubles them by a kernel and
// copies them back. Several ranks then gather all values and reduce the gathered ones. All values
// are compared. Element r of `ranks` is rank r's mesh; the call destroys them.
// Errors: the exception of the rank that failed first; DeviceError for a wrong value, naming
//   device, element and both values.
void run_loopback(std::vector<Mesh> ranks);

}  // namespace fsdp::doctor
