// Measures steps of two thread ranks on a simulated link. Units compute for known times. Reads a
// command from each line and prints milliseconds. wire_probe WIDTH FORWARD BACKWARD [FORWARD
// BACKWARD …]   a unit of WIDTH² floats for each pair step PREFETCH GB/S   the slower rank's
// forward and backward, with threaded streams plain                the same without an engine, at
// the same time in two threads gather GB/S          a gather of a unit, the mean of several in a
// row on their own stream
#include <c10/core/AutogradState.h>
#include <fmt/format.h>

#include <array>
#include <barrier>
#include <cstdio>
#include <iostream>
#include <string>

#include "benchmarks/sleeping_units.h"
#include "comm/mesh_state.h"
#include "tests/support/run_ranks.h"
#include "tests/support/wire/wire_ranks.h"

namespace {

using fsdp::sleeping::Milliseconds;

constexpr int kRanks = 2;
constexpr int kWarmUp = 2;  // the order of units is known after the first step

struct Workload {
  int64_t width = 0;
  std::vector<fsdp::sleeping::UnitTimes> units;
};

class Ranks {
 public:
  explicit Ranks(const Workload& work) : work_(work) {}

  double step(int prefetch, double gigabytes_per_second) {
    return slower(gigabytes_per_second, [&](const fsdp::Mesh& mesh) {
      fsdp::Unit<fsdp::sleeping::Model> model(work_.width, work_.units);
      fsdp::Engine engine(
          model, mesh,
          {.prefetch_units = prefetch, .tuning = {.cpu_streams = fsdp::CpuStreamKind::kThreaded}});
      return last_step(model, [&] { engine.zero_grad(); });
    });
  }

  double plain() {
    return slower(0, [&](const fsdp::Mesh&) {
      fsdp::Unit<fsdp::sleeping::Model> model(work_.width, work_.units);
      return last_step(model, [&] { model->zero_grad(); });
    });
  }

  double gather(double gigabytes_per_second) {
    constexpr int kTimes = 8;
    const double all = slower(gigabytes_per_second, [&](const fsdp::Mesh& mesh) {
      const auto stream = state_of(mesh).device().make_stream({.name = "gather"});
      const int64_t numel = work_.width * work_.width / kRanks;
      std::vector<float> mine(numel), whole(numel * kRanks);
      const fsdp::CollectivePart part{.send = mine.data(), .recv = whole.data(), .numel = numel};
      together_.arrive_and_wait();
      return fsdp::sleeping::time_of([&] {
        for (int i = 0; i < kTimes; ++i) {
          state_of(mesh)
              .gather_communicator(fsdp::Axis::kShard)
              .all_gather({&part, 1}, {.label = "gather"}, *stream);
        }
        stream->synchronize();
      });
    });
    return all / kTimes;
  }

 private:
  template <class ZeroGrad>
  Milliseconds last_step(fsdp::Unit<fsdp::sleeping::Model>& model, ZeroGrad zero_grad) {
    Milliseconds time{};
    for (int i = 0; i <= kWarmUp; ++i) {
      together_.arrive_and_wait();  // otherwise a rank's time would contain the other's delay
      time = fsdp::sleeping::time_of([&] {
        model(torch::ones({1, work_.width})).sum().backward();
      });
      zero_grad();
    }
    return time;
  }

  // Returns the larger of the two results that `measure` has on the two ranks.
  template <class Measure>
  static double slower(double gigabytes_per_second, Measure measure) {
    std::array<Milliseconds, kRanks> times{};
    fsdp::testing::run_ranks(
        kRanks, [&](const fsdp::Mesh& mesh) { times[mesh.rank()] = measure(mesh); },
        {.in_each_thread =
             [] {  // backward in the rank's own thread
               c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
               at::set_num_threads(1);
             },
         .make = fsdp::testing::ranks_on_wire({.gigabytes_per_second = gigabytes_per_second})});
    return std::max(times[0], times[1]).count();
  }

  const Workload work_;
  std::barrier<> together_{kRanks};
};

double run(Ranks& ranks, const std::string& name) {
  if (name == "plain") return ranks.plain();
  int prefetch = 0;
  if (name == "step") std::cin >> prefetch;
  double gigabytes_per_second = 0;
  if (name == "step" || name == "gather") std::cin >> gigabytes_per_second;
  if (name == "step") return ranks.step(prefetch, gigabytes_per_second);
  if (name == "gather") return ranks.gather(gigabytes_per_second);
  throw fsdp::InvalidArgument({.what = fmt::format("there is no command '{}'", name),
                               .where = "wire_probe",
                               .hint = "use step PREFETCH GB/S, plain, or gather GB/S"});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc % 2 != 0) {
    fmt::print(stderr, "usage: wire_probe WIDTH FORWARD BACKWARD [FORWARD BACKWARD …]\n");
    return 64;
  }
  try {
    Workload work{.width = std::stoll(argv[1])};
    for (int i = 2; i < argc; i += 2) {
      work.units.push_back(
          {Milliseconds(std::stod(argv[i])), Milliseconds(std::stod(argv[i + 1]))});
    }
    Ranks ranks(work);
    for (std::string name; std::cin >> name;) {
      fmt::print("{:.4f}\n", run(ranks, name));
      std::fflush(stdout);
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
