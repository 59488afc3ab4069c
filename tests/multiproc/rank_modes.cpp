#include "multiproc/rank_modes.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "comm/mesh_state.h"
#include "comm/ranks_view.h"
#include "comm/support/collective_sweep.h"
#include "comm/support/reduction_bits.h"
#include "comm/support/steps_apart.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"

namespace fsdp::testing {
namespace {

int sweep_all(Communicator& communicator, int64_t large) {
  int wrong = 0;
  for (const SweepCase& sweep_case : all_cases(large)) {
    for (const std::string& line : sweep(communicator, sweep_case)) {
      fmt::print("{}\n", line);
      ++wrong;
    }
  }
  return wrong == 0 ? 0 : 1;
}

// Sweeps on the groups of even and odd ranks, in reverse order. At the same time, the parent
// communicator runs its own sweep.
int sweep_groups(const Mesh& mesh, int64_t large) {
  Communicator& all = state_of(mesh).gather_communicator(Axis::kWorld);
  const auto group = all.split(mesh.rank() % 2, -mesh.rank());
  int wrong_beside = 0;
  std::thread beside([&] { wrong_beside = sweep_all(all, large); });
  const int wrong = sweep_all(*group, large);
  beside.join();
  return wrong + wrong_beside;
}

void commit(const std::string& fault) {
  if (fault == "kill") kill(getpid(), SIGKILL);
  if (fault == "abort") std::abort();
  if (fault == "segv") raise(SIGSEGV);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "pause") std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  if (fault == "exit-0") std::exit(0);
  if (fault == "_exit-0") _exit(0);
  if (fault == "exit-3") std::exit(3);
  if (fault == "throw") throw IoError(ExitCode::kCorruptData, {.what = "a file is broken"});
  if (fault == "terminate") std::thread([] { throw std::runtime_error("lost"); }).join();
}

// Runs steps like those of a training: gathers ahead on one stream, and reductions on another.
int steps(const Mesh& mesh, ErrorPlace& place, const std::vector<std::string>& arguments) {
  const int64_t count = std::stoll(arguments[1]);
  const std::string fault = arguments.size() > 4 ? arguments[2] : "";
  const bool guilty = !fault.empty() && std::stoi(arguments[3]) == mesh.rank();
  const int64_t at = fault.empty() ? -1 : std::stoll(arguments[4]);
  const auto gathers = make_cpu_stream(CpuStreams::kThreaded, "gathers");
  const auto reduces = make_cpu_stream(CpuStreams::kInline, "reduces");
  constexpr int64_t kNumel = 10'000;
  Communicator& gather = state_of(mesh).gather_communicator(Axis::kWorld);
  Communicator& reduce = state_of(mesh).reduce_communicator(Axis::kWorld);
  const Buffer unit = gather.allocate(mesh.world_size() * kNumel * 4);
  std::vector<float> norm(1);
  if (const char* begun = std::getenv("TEST_BEGUN")) std::ofstream(begun) << "begun";
  for (place.step = 0; place.step < count; ++place.step) {
    const CollectivePart unit_part{unit.at(mesh.rank() * kNumel * 4), unit.data(), kNumel,
                                   DType::kFloat32};
    gather.all_gather({&unit_part, 1},
                      state_of(mesh).order().next(Operation::kAllGather, kNumel, "unit"), *gathers);
    if (guilty && place.step == at) {
      if (fault == "return-0") return 0;
      commit(fault);
    }
    const CollectivePart norm_part{norm.data(), norm.data(), 1, DType::kFloat32};
    reduce.all_reduce({&norm_part, 1}, ReduceOp::kSum,
                      state_of(mesh).order().next(Operation::kAllReduce, 1, "norm"), *reduces);
    gathers->synchronize();
  }
  fmt::print("rank {} of {} done\n", mesh.rank(), mesh.world_size());
  return 0;
}

int mismatch(const Mesh& mesh, const std::string& what, int odd) {
  std::array<float, 8> values{};
  CollectivePart part{values.data(), values.data(), 8, DType::kFloat32};
  CollectiveTag tag{.sequence = 7, .label = "norm"};
  const auto stream = make_cpu_stream(CpuStreams::kInline, "x");
  Communicator& reduce = state_of(mesh).reduce_communicator(Axis::kWorld);
  const auto differs = [&](const char* kind) { return mesh.rank() == odd && what == kind; };
  if (differs("count")) part.numel = 4;
  if (differs("dtype")) part.dtype = DType::kInt32;
  if (differs("order")) tag.sequence = 8;
  std::string name;  // "name60" means 60 bytes, of which the first differs on RANK
  if (what.starts_with("name")) {
    name.assign(std::stoi(what.substr(4)), 'x');
    if (mesh.rank() == odd) name.front() = 'y';
    tag.label = name;
  }
  if (differs("operation")) {
    reduce.barrier(tag, *stream);
  } else {
    reduce.all_reduce({&part, 1}, differs("reduce-op") ? ReduceOp::kMax : ReduceOp::kSum, tag,
                      *stream);
  }
  // On several hosts, ranks that exchange no data with RANK may have completed the collective.
  reduce.barrier({.sequence = 9, .label = "end"}, *stream);
  return 0;
}

int disagree(const Mesh& mesh, int odd) {
  mesh.agree("configuration", {"hidden 128", mesh.rank() == odd ? "layers 3" : "layers 2"});
  return 0;
}

// Makes parts of neighbouring ranks. Different parts issue different collectives.
int parts(const Mesh& mesh, const std::vector<std::string>& arguments) {
  const std::string fault = arguments.size() > 2 ? arguments[1] : "";
  const int color = mesh.rank() / 2;
  const Mesh part = mesh.part(color);
  for (int round = 0; round < 50 + 7 * color || !fault.empty(); ++round) {
    if (!fault.empty() && round == 20 && std::stoi(arguments[2]) == mesh.rank()) commit(fault);
    if (color == 0) part.sum(std::array{1, 2}, "first");
    if (color != 0) part.gather(std::array{1.0F}, "others");
  }
  fmt::print("rank {} is {} of {} in part {}, all {}\n", mesh.rank(), part.rank(),
             part.world_size(), color, mesh.sum(1));
  return 0;
}

// Returns the number of failed expectations.
int stray_write(const Mesh& mesh) {
  constexpr int64_t kBytes = 512 * 1024;
  constexpr int64_t kPlace = 5000;
  const auto stream = make_cpu_stream(CpuStreams::kInline, "x");
  Communicator& gather = state_of(mesh).gather_communicator(Axis::kWorld);
  const Buffer mine = gather.allocate(kBytes);
  const auto letter_of = [](int rank) { return static_cast<char>('a' + rank); };
  std::memset(mine.data(), letter_of(mesh.rank()), kBytes);
  int wrong = 0;
  RanksView view = gather.map_ranks(mine.data(), kBytes);
  const int peer = (mesh.rank() + 1) % mesh.world_size();
  const int64_t at = peer * kBytes + kPlace;
  volatile char& seen = static_cast<volatile char*>(view.data())[at];
  for (int round = 0; round < 3; ++round) {
    gather.barrier({}, *stream);
    wrong += seen != letter_of(peer);
    wrong += view.take_write().has_value();
    seen = 'x';
    wrong += seen != 'x';
    wrong += view.take_write() != at;
    wrong += seen != letter_of(peer);
    gather.barrier({}, *stream);
    wrong += *reinterpret_cast<const char*>(mine.at(kPlace)) != letter_of(mesh.rank());
  }
  fmt::print("rank {}: {} wrong\n", mesh.rank(), wrong);
  return wrong;
}

}  // namespace

int run_mode(const Mesh& mesh, ErrorPlace& place, const std::vector<std::string>& arguments) {
  const std::string& what = arguments[0];
  if (what == "sweep") {
    return sweep_all(state_of(mesh).gather_communicator(Axis::kWorld), std::stoll(arguments[1]));
  }
  if (what == "sweep-groups") return sweep_groups(mesh, std::stoll(arguments[1]));
  if (what == "steps") return steps(mesh, place, arguments);
  if (what == "mismatch") return mismatch(mesh, arguments[1], std::stoi(arguments[2]));
  if (what == "apart") {
    step_apart(mesh, arguments[1], std::stoi(arguments[2]), CpuStreams::kInline);
    return 0;
  }
  if (what == "stray-write") return stray_write(mesh);
  if (what == "parts") return parts(mesh, arguments);
  if (what == "disagree") return disagree(mesh, std::stoi(arguments[1]));
  if (what == "bits") {
    const std::string bits =
        reduction_bits(state_of(mesh).reduce_communicator(Axis::kWorld), std::stoll(arguments[1]));
    fmt::print("bits {}\n", bits);
    return 0;
  }
  if (what == "linger") {
    fmt::print("rank {} lingers\n", mesh.rank());
    std::fflush(stdout);
    pause();
  }
  throw InvalidArgument({.what = fmt::format("no mode '{}'", what)}, ExitCode::kUsage);
}

MeshOptions mesh_options() {
  MeshOptions options;
  if (const char* timeout = std::getenv("TEST_TIMEOUT_MS")) {
    options.timeout = std::chrono::milliseconds(std::atoi(timeout));
  }
  return options;
}

void write_no_core_files() {
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &none);
}

}  // namespace fsdp::testing
