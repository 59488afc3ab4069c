// Factories of meshes. They serve Mesh::from_env, programs without LibTorch, and tests and
// benchmarks that replace parts of a mesh.
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/program.h>

#include <functional>
#include <vector>

#include "comm/hosts/host_links.h"
#include "comm/mesh_parts.h"
#include "comm/store/key_value_store.h"

namespace fsdp {

// Dependencies of a process's mesh in addition to MeshOptions.
struct MeshMaking {
  // Connects to the store of a launcher's agent. If it is null, ranks of such a launcher on several
  // hosts are rejected.
  OpenStore open_store = nullptr;
  // Opens the transport between hosts. If it is null, ranks on CPUs of several hosts are rejected.
  OpenTransport open_transport = nullptr;
  // Changes the parts before the mesh uses them. If it is empty, nothing is changed.
  std::function<void(MeshParts& parts)> change{};
};

// Makes this process's mesh. The contract is that of Mesh::from_env.
Mesh make_mesh(const MeshOptions& options, const MeshMaking& making = {});
// Runs a program on the mesh that `making` makes. The contract is that of run_program in program.h.
int run_program(const ProgramBody& body, MeshOptions options, const MeshMaking& making);

// Returns the MeshParts from which Mesh::local makes its meshes. Element r belongs to rank r.
std::vector<MeshParts> parts_of_threads(int world_size, const MeshOptions& options);

}  // namespace fsdp
