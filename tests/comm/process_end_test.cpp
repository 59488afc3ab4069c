#include "comm/job/process_end.h"

#include <doctest/doctest.h>

#include <csignal>

namespace fsdp {
namespace {

TEST_CASE("a restart is not advised after the kernel freed memory by killing a rank") {
  CHECK(hint_for_end(2, SIGKILL, /*out_of_memory=*/false) ==
        "see what rank 2 printed, then restart the job");
  CHECK(hint_for_end(2, SIGKILL, /*out_of_memory=*/true) ==
        "use fewer ranks on this host, a smaller batch or --recompute: the host or the job's "
        "cgroup is out of memory, and the kernel killed rank 2 (see dmesg); a restart alone is "
        "likely "
        "to end the same way");
}

}  // namespace
}  // namespace fsdp
