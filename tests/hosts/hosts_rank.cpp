// A rank of the tests on several hosts, which are processes on CPUs.
//   hosts_rank calls SEED COUNT            random collectives (comm/support/random_calls.h)
//   hosts_rank bytes OPERATION NUMEL COUNT COUNT collectives whose largest buffer has NUMEL float32
//   hosts_rank train MODEL STEPS COUNT     trains MODEL (gpt or bert) with COUNT different options
//                                          (0: pairs of all options); rank 0 prints the results
//   hosts_rank reference MODEL STEPS COUNT WORLD HOSTS
//                                          the same on threads of one process, whose sums have the
//                                          order of HOSTS hosts
//   hosts_rank killed-before-connection RANK
//                                          RANK meets the other ranks and then kills itself
// All other modes are those of multiproc/rank_modes.h.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/program.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "comm/mesh_state.h"
#include "comm/store/open_job_store.h"
#include "comm/store/store_mesh.h"
#include "comm/support/random_calls.h"
#include "gpu/support/training.h"
#include "hosts/host_sums.h"
#include "libtorch/torch_store.h"
#include "multiproc/rank_modes.h"
#include "runtime/buffer.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

int calls(const Mesh& mesh, const std::vector<std::string>& words) {
  int wrong = 0;
  for (const auto streams : {CpuStreams::kInline, CpuStreams::kThreaded}) {
    for (const std::string& line :
         random_calls(state_of(mesh).reduce_communicator(Axis::kWorld), std::stoull(words[1]),
                      std::stoi(words[2]), streams)) {
      fmt::print("{}\n", line);
      ++wrong;
    }
  }
  return wrong == 0 ? 0 : 1;
}

int bytes(const Mesh& mesh, const std::vector<std::string>& words) {
  const int64_t piece = std::stoll(words[2]) / mesh.world_size();
  const int64_t whole = piece * mesh.world_size();
  Communicator& communicator = state_of(mesh).reduce_communicator(Axis::kWorld);
  const Buffer buffer = communicator.allocate(whole * 4);
  std::byte* const own = buffer.at(mesh.rank() * piece * 4);
  const CollectivePart gathered{own, buffer.data(), piece, DType::kFloat32};
  const CollectivePart scattered{buffer.data(), own, piece, DType::kFloat32};
  const CollectivePart in_place{buffer.data(), buffer.data(), whole, DType::kFloat32};
  const auto stream = make_cpu_stream(CpuStreams::kInline, "bytes");
  const CollectiveTag tag{.sequence = 0, .label = "bytes"};
  for (int64_t i = 0; i < std::stoll(words[3]); ++i) {
    if (words[1] == "all_gather") communicator.all_gather({&gathered, 1}, tag, *stream);
    if (words[1] == "reduce_scatter") {
      communicator.reduce_scatter({&scattered, 1}, ReduceOp::kSum, tag, *stream);
    }
    if (words[1] == "all_reduce") {
      communicator.all_reduce({&in_place, 1}, ReduceOp::kSum, tag, *stream);
    }
    if (words[1] == "broadcast") communicator.broadcast({&in_place, 1}, 0, tag, *stream);
  }
  fmt::print("{} bytes\n", whole * 4);
  return 0;
}

std::vector<Training> trainings_of(const std::vector<std::string>& words, int world, int hosts) {
  std::vector<Training> all =
      all_trainings(words[1] == "bert" ? SmallModel::kBert : SmallModel::kGpt);
  std::erase_if(all, [](const Training& each) { return each.world != 4; });
  for (Training& each : all) {
    each.world = world;
    each.groups = hosts;
    each.steps = std::stoi(words[2]);
  }
  std::vector<Training> chosen = covering_trainings(all);
  const auto count = static_cast<size_t>(std::stoll(words[3]));
  if (count > 0 && count < chosen.size()) chosen.resize(count);
  return chosen;
}

void print(const Training& training, const TrainingResult& result) {
  size_t hash = 0;
  for (const auto& [fqn, value] : result.parameters) {
    const at::Tensor whole = value.contiguous();
    const std::string_view bits(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
    hash = hash * 31 + std::hash<std::string_view>{}(bits);
  }
  std::vector<std::string> losses;
  for (const float loss : result.losses) losses.push_back(fmt::format("{:a}", loss));
  fmt::print("{}: losses {}, {} parameters {:016x}\n", describe(training), fmt::join(losses, " "),
             result.parameters.size(), hash);
  std::fflush(stdout);
}

int train(const Mesh& mesh, ErrorPlace& place, const std::vector<std::string>& words) {
  at::set_num_threads(1);
  const int hosts = mesh.size(Axis::kWorld) / mesh.size(Axis::kShard);
  place.step = 0;
  for (const Training& training : trainings_of(words, mesh.world_size(), hosts)) {
    TrainingResult result;
    train_rank(
        training, mesh, [] { return 0; }, result);
    if (mesh.rank() == 0) print(training, result);
    ++place.step;
  }
  return 0;
}

int reference(const std::vector<std::string>& words) {
  at::set_num_threads(1);
  const int world = std::stoi(words[4]), hosts = std::stoi(words[5]);
  RunRanksOptions options = torch_ranks_options();
  options.make = [hosts](int ranks, const MeshOptions& mesh) {
    return ranks_with_host_sums(ranks, hosts, mesh);
  };
  for (const Training& training : trainings_of(words, world, hosts)) {
    print(training, train_on(training, options, [] { return 0; }));
  }
  return 0;
}

// Meets the ranks of the job at the store, and dies before the hosts connect.
[[noreturn]] void meet_and_die(const LaunchEnvironment& environment) {
  const StoreRanks joined =
      mesh_over_store(open_job_store(environment, mesh_options(), open_torch_store), environment,
                      mesh_options(), HostMemory::kShared);
  raise(SIGKILL);
  std::abort();
}

int run(const Mesh& mesh, ErrorPlace& place, const std::vector<std::string>& words) {
  if (words[0] == "calls") return calls(mesh, words);
  if (words[0] == "bytes") return bytes(mesh, words);
  if (words[0] == "train") return train(mesh, place, words);
  if (words[0] == "killed-before-connection") return bytes(mesh, {"bytes", "all_reduce", "8", "9"});
  return run_mode(mesh, place, words);
}

}  // namespace
}  // namespace fsdp::testing

int main(int argc, char** argv) {
  fsdp::testing::write_no_core_files();
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) {
    fmt::print(stderr, "hosts_rank MODE ARGUMENT…\n");
    return static_cast<int>(fsdp::ExitCode::kUsage);
  }
  if (words[0] == "reference") return fsdp::testing::reference(words);
  if (words[0] == "killed-before-connection") {
    const fsdp::LaunchEnvironment environment = fsdp::read_launch_environment();
    if (std::stoi(words[1]) == environment.rank) fsdp::testing::meet_and_die(environment);
  }
  return fsdp::run_program(
      [&](const fsdp::Mesh& mesh, fsdp::ErrorPlace& place) {
        return fsdp::testing::run(mesh, place, words);
      },
      fsdp::testing::mesh_options());
}
