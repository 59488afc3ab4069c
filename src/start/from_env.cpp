// Entry points of programs that have LibTorch. Ranks on several hosts connect through LibTorch's
// key-value store.
#include "comm/make_mesh.h"
#include "fsdp/mesh.h"
#include "fsdp/program.h"
#include "libtorch/gloo_links.h"
#include "libtorch/torch_store.h"

namespace fsdp {

Mesh Mesh::from_env(MeshOptions options) {
  return make_mesh(options, {.open_store = open_torch_store, .open_transport = open_gloo});
}

int run_program(const ProgramBody& body, MeshOptions options) {
  return run_program(body, std::move(options),
                     {.open_store = open_torch_store, .open_transport = open_gloo});
}

}  // namespace fsdp
