// Measures the rates of this machine, from which a plan computes the time of a step.
//
//   const fsdp::Rates rates = fsdp::measured_rates(mesh, {.seconds = 20});
//   if (mesh.rank() == 0) fmt::print("{}", fsdp::to_json(rates));
//
// Times depend on the other work of the machine. So all ranks of a host must measure at the same
// time, as in a step, and nothing else should run.
#pragma once

#include <c10/core/ScalarType.h>
#include <fsdp/mesh.h>
#include <fsdp/played_operators.h>
#include <fsdp/rates.h>

#include <cstdint>
#include <vector>

namespace fsdp {

struct MeasureOptions {
  double seconds = 20;  // time for the rates of the device; the other measurements add a few
  std::vector<c10::ScalarType> dtypes{c10::ScalarType::Float};  // of products and attention
  // Elements on which kernels of the engine work. Their memory should exceed the caches, because in
  // a step a kernel reads memory that was last used long before.
  int64_t kernel_numel = 16 << 20;
  int64_t link_bytes = 32 << 20;  // largest collective
  CpuClock clock = CpuClock::kWall;
};

// Times of the rank's thread on the CPU, in nanoseconds.
struct HostTimes {
  // From an operator to the next one, without the operators themselves. It is negative if the clock
  // that measures an operator takes longer.
  double between_ns = 0;
  double per_call_ns = 0;    // of an operator on few elements, with the time between operators
  double per_kernel_ns = 0;  // of a kernel or collective of the engine on few elements
};

// Measures all rates of the ranks' devices and of the links between the ranks of a host. If
// `operators` is not null, plays them for up to options.seconds and adds their prices.
// Requires: collective; all ranks of the mesh are on one host. LibTorch's number of threads is that
//   of the run.
// Errors: InvalidArgument if the ranks are on several hosts.
Rates measured_rates(const Mesh& mesh, const MeasureOptions& options,
                     PlayedOperators* operators = nullptr);

// Measure parts of these rates and store them in `rates`. Requires: as measured_rates.
void measure_device(Rates& rates, const Mesh& mesh, const MeasureOptions& options);
void measure_kernels(Rates& rates, const Mesh& mesh, const MeasureOptions& options);
void measure_links(Rates& rates, const Mesh& mesh, const MeasureOptions& options);
// Compares steps of two small models on the CPU with the times of their operators, which are played
// by themselves in turns with the steps.
HostTimes measured_host_times(CpuClock clock);

}  // namespace fsdp
