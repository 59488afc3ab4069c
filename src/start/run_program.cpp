#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <utility>

#include "comm/make_mesh.h"
#include "comm/simulated/ablated_communicator.h"
#include "fsdp/agreement.h"
#include "fsdp/program.h"
#include "fsdp/program_text.h"
#include "fsdp/run_options.h"
#include "libtorch/gloo_links.h"
#include "libtorch/torch_store.h"

namespace fsdp {

int run_program(const ProgramBody& body, const RunOptions& run) {
  MeshMaking making{.open_store = open_torch_store, .open_transport = open_gloo};
  if (run.ablate_communication) making.change = ablate;
  return run_program(body, run.mesh, making);
}

int run_program(int argc, const char* const* argv, const RunBody& body, ProgramFlags program,
                RunOptions defaults) {
  RunOptions run;
  std::exception_ptr wrong;
  try {
    // The mesh is made even if the command line is wrong, so that one rank reports the error for
    // all.
    run = RunOptions::parse(argc, argv, program, std::move(defaults));
  } catch (const std::exception&) {
    wrong = std::current_exception();
  }
  RunOptions started = run;
  // If the command line is wrong or asks for help, nothing is computed. The ranks then use the CPU,
  // so that no warning about missing GPUs is printed above the message.
  if (wrong || run.help) started.mesh.device = DeviceKind::kCpu;
  const auto serve = [&](const Mesh& mesh, ErrorPlace& place) {
    // If the command line is wrong on one rank only, all ranks still end with its error.
    run_or_throw_on_all_ranks(mesh, "reading the command line", [&] {
      if (wrong) std::rethrow_exception(wrong);
    });
    if (!run.help) return body(mesh, run, place);
    if (mesh.rank() == 0) {
      const std::string name = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "";
      fmt::print("usage: {} [FLAGS]\n\n{}\n{}", name, run.help_text(program), exit_codes_help());
    }
    return 0;
  };
  return run_program(serve, started);
}

}  // namespace fsdp
