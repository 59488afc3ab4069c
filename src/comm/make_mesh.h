// How meshes are made: for Mesh::from_env, for programs without LibTorch, and for tests and
// benchmarks that change what carries one.
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/program.h>

#include <functional>
#include <vector>

#include "comm/mesh_parts.h"
#include "comm/store/key_value_store.h"

namespace fsdp {

// What the makers of a process's mesh know beside MeshOptions.
struct MeshMaking {
  // Opens the store at which ranks of several hosts meet; null: such ranks are refused.
  OpenStore open_store = nullptr;
  // Changes what carries the mesh before anything travels on it; empty: nothing is changed.
  std::function<void(MeshParts& parts)> change{};
};

// As Mesh::from_env.
Mesh make_mesh(const MeshOptions& options, const MeshMaking& making = {});
// As run_program of program.h, on the mesh that `making` makes.
int run_program(const ProgramBody& body, MeshOptions options, const MeshMaking& making);

// What the ranks of Mesh::local have; element r is rank r's.
std::vector<MeshParts> parts_of_threads(int world_size, const MeshOptions& options);

}  // namespace fsdp
