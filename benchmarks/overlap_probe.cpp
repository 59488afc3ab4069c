// Measures units that compute for a known time, because they sleep. On the simulated link, every
// gather and every reduction takes a known time. Reads a command from each line and prints its
// milliseconds.
//   overlap_probe UNITS FORWARD BACKWARD WIRE    in milliseconds: a unit's passes, a collective
//   threaded | inline          a step; collectives run on their own threads or in the caller's
//   forward | backward | wire  a sleep of that time; it is longer on a busy machine
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "benchmarks/sleeping_units.h"
#include "tests/support/simulated_mesh.h"

namespace {

using fsdp::sleeping::Milliseconds;

constexpr int64_t kWidth = 64;

struct Workload {
  int units;
  Milliseconds forward, backward;  // compute time of a unit
  Milliseconds wire;               // time of a collective
};

class Probe {
 public:
  explicit Probe(const Workload& work) : work_(work) {}

  double run(const std::string& name) {
    if (name == "threaded") return step(threaded_);
    if (name == "inline") return step(inline_);
    if (name == "forward") return slept(work_.forward);
    if (name == "backward") return slept(work_.backward);
    if (name == "wire") return slept(work_.wire);
    throw fsdp::InvalidArgument({.what = fmt::format("there is no command '{}'", name),
                                 .where = "overlap_probe",
                                 .hint = "use threaded, inline, forward, backward or wire"});
  }

 private:
  struct Sharded {
    Sharded(const Workload& work, fsdp::CpuStreamKind streams)
        : model(kWidth,
                std::vector<fsdp::sleeping::UnitTimes>(work.units, {work.forward, work.backward})),
          engine(model,
                 fsdp::testing::simulated_mesh(
                     2, std::chrono::duration_cast<std::chrono::nanoseconds>(work.wire)),
                 {.prefetch_units = 1, .tuning = {.cpu_streams = streams}}) {}
    fsdp::Unit<fsdp::sleeping::Model> model;
    fsdp::Engine engine;
  };

  static double step(Sharded& sharded) {
    const Milliseconds time = fsdp::sleeping::time_of([&] {
      sharded.model(torch::ones({1, kWidth})).sum().backward();
    });
    sharded.engine.zero_grad();
    return time.count();
  }

  static double slept(Milliseconds asked) { return fsdp::sleeping::slept(asked).count(); }

  Workload work_;
  Sharded threaded_{work_, fsdp::CpuStreamKind::kThreaded};
  Sharded inline_{work_, fsdp::CpuStreamKind::kInline};
};

void serve(const Workload& work) {
  Probe probe(work);
  for (std::string name; std::cin >> name;) {
    fmt::print("{:.4f}\n", probe.run(name));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: overlap_probe UNITS FORWARD BACKWARD WIRE\n");
    return 64;
  }
  try {
    serve({.units = std::stoi(argv[1]),
           .forward = Milliseconds(std::stod(argv[2])),
           .backward = Milliseconds(std::stod(argv[3])),
           .wire = Milliseconds(std::stod(argv[4]))});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
