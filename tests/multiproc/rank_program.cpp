// One rank of the tests with real processes. Its modes are those of rank_modes.h, and:
//   rank_program leave-child TOKEN   starts a process of its own and ends
//   rank_program sleep               waits for a signal, without a mesh
#include <unistd.h>

#include <string>
#include <vector>

#include "comm/make_mesh.h"
#include "multiproc/rank_modes.h"

namespace {

int leave_child(const std::string& token) {
  if (fork() == 0) {
    execl("/proc/self/exe", "rank_program", "sleep", token.c_str(), nullptr);
    _exit(127);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  fsdp::testing::write_no_core_files();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "sleep") return pause();
  return fsdp::run_program(
      [&](const fsdp::Mesh& mesh, fsdp::ErrorPlace& place) {
        if (arguments[0] == "leave-child") return leave_child(arguments[1]);
        return fsdp::testing::run_mode(mesh, place, arguments);
      },
      fsdp::testing::mesh_options(), {});
}
