// Processes that serve the launcher and end after it.
#pragma once

#include <functional>
#include <vector>

#include "base/descriptor.h"

namespace fsdp {

// Starts a process that runs `body(wait)` and then ends. `wait` blocks until the launcher has
// closed the returned descriptor or has ended, also by SIGKILL. The process has its own session, so
// that signals to the launcher's group do not reach it. Of the launcher's descriptors it has only
// `kept`, so that a reader of the launcher's output sees its end. It is not a child of the
// launcher. Returns no descriptor if the process could not be started.
// Requires: this process has one thread.
Descriptor start_side_process(const std::vector<int>& kept,
                              const std::function<void(const std::function<void()>& wait)>& body);

}  // namespace fsdp
