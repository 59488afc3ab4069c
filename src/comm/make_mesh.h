// Factories of meshes: for Mesh::from_env, for programs without LibTorch, and for tests and
// benchmarks that replace parts of a mesh.
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/program.h>

#include <functional>
#include <vector>

#include "comm/mesh_parts.h"
#include "comm/store/key_value_store.h"

namespace fsdp {

// Dependencies of a process's mesh beside MeshOptions.
struct MeshMaking {
  // Opens the key-value store of ranks on several hosts; null: such ranks are rejected.
  OpenStore open_store = nullptr;
  // Changes the parts before the mesh uses them; empty: no change.
  std::function<void(MeshParts& parts)> change{};
};

// Makes this process's mesh, as Mesh::from_env.
Mesh make_mesh(const MeshOptions& options, const MeshMaking& making = {});
// Runs a program as run_program of program.h does, on the mesh that `making` makes.
int run_program(const ProgramBody& body, MeshOptions options, const MeshMaking& making);

// Returns the parts of the meshes of Mesh::local; element r is rank r's.
std::vector<MeshParts> parts_of_threads(int world_size, const MeshOptions& options);

}  // namespace fsdp
