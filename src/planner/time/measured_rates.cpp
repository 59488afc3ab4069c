// Measures rates of a device and of links between ranks (measured_rates.h).
#include "fsdp/measured_rates.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "base/cpu_features.h"
#include "base/median.h"
#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/fill.h"
#include "kernels/grad_norm.h"
#include "kernels/reduce.h"
#include "kernels/update.h"
#include "planner/time/caches.h"
#include "planner/time/device_timer.h"

namespace fsdp {
namespace {

using Seconds = std::chrono::duration<double>;
constexpr double kNanoseconds = 1e9;

at::Device torch_device(const Mesh& mesh) {
  return at::Device(std::string(state_of(mesh).device().name()));
}

// Calls `measure`, which returns nanoseconds, until `seconds` have passed, and returns the median.
// The first of at least three calls only warms up.
double median_for(double seconds, const std::function<double()>& measure) {
  measure();
  std::vector<double> times;
  const auto begin = std::chrono::steady_clock::now();
  while (times.size() < 2 || Seconds(std::chrono::steady_clock::now() - begin).count() < seconds) {
    times.push_back(measure());
  }
  return median_of(std::move(times));
}

class DeviceMeasurement {
 public:
  DeviceMeasurement(const Mesh& mesh, const MeasureOptions& options)
      : options_(options), device_(torch_device(mesh)), timer_(device_, options.clock) {}

  double copy_bytes_per_second() const {
    constexpr int64_t kNumel = 16 << 20;
    const at::Tensor from = at::randn({kNumel}, device_), to = at::empty_like(from);
    const double ns = median_for(part(), [&] { return timer_.time([&] { to.copy_(from); }); });
    return kNanoseconds * 2 * static_cast<double>(from.nbytes()) / ns;
  }

  // Measures products of ascending sides until one takes too long.
  std::vector<ProductRate> products(c10::ScalarType dtype) const {
    constexpr int64_t kWidth = 1024;
    const at::Tensor right = at::randn({kWidth, kWidth}, device_).to(dtype);
    std::vector<ProductRate> rates;
    for (const int64_t side : kSides) {
      const int64_t width = std::max(kWidth, side);
      const at::Tensor left = at::randn({side, width}, device_).to(dtype);
      const at::Tensor other =
          width == kWidth ? right : at::randn({width, width}, device_).to(dtype);
      const double ns =
          median_for(part(), [&] { return timer_.time([&] { at::mm(left, other); }); });
      const auto flops = 2 * static_cast<double>(side * width * width);
      rates.push_back({.side = static_cast<double>(side), .flops = kNanoseconds * flops / ns});
      if (ns > kNanoseconds * part()) break;
    }
    return rates;
  }

  double attention(c10::ScalarType dtype) const {
    constexpr int64_t kSequences = 2, kHeads = 8, kTokens = 256, kWidth = 64;
    const auto random = [&] {
      return at::randn({kSequences, kHeads, kTokens, kWidth}, device_).to(dtype);
    };
    const at::Tensor query = random(), key = random(), value = random();
    const double ns = median_for(part(), [&] {
      return timer_.time([&] { at::scaled_dot_product_attention(query, key, value); });
    });
    return kNanoseconds * 4 * kSequences * kHeads * kTokens * kTokens * kWidth / ns;
  }

 private:
  static constexpr int64_t kSides[] = {8, 32, 128, 512, 2048};

  // Seconds of one measurement.
  double part() const {
    const auto count = 1 + (std::size(kSides) + 1) * options_.dtypes.size();
    return options_.seconds / static_cast<double>(count);
  }

  const MeasureOptions& options_;
  const at::Device device_;
  const DeviceTimer timer_;
};

// Returns how much longer a product takes beside a thread that copies memory.
double measured_contention(CpuClock clock) {
  const at::Tensor left = at::randn({256, 1024}), right = at::randn({1024, 1024});
  const DeviceTimer timer(at::kCPU, clock);
  const auto product = [&] { return timer.time([&] { at::mm(left, right); }); };
  constexpr double kTime = 0.2;
  const double alone = median_for(kTime, product);
  std::atomic<bool> ends = false;
  std::thread copies([&] {
    std::vector<char> from(32 << 20), to(from.size());
    while (!ends) std::memcpy(to.data(), from.data(), from.size());
  });
  const double beside = median_for(kTime, product);
  ends = true;
  copies.join();
  return std::max(0.0, beside / alone - 1);
}

// Returns the time in which the thread issues an operator to a GPU.
double time_of_launch(at::Device device) {
  constexpr int kCalls = 200;
  constexpr double kTime = 0.2;
  const at::NoGradGuard no_graph;
  const at::Tensor few = at::zeros({8}, device);
  return median_for(kTime, [&] {
    const double begin = now_ns(CpuClock::kWall);
    for (int i = 0; i < kCalls; ++i) few.add_(1);
    const double ns = now_ns(CpuClock::kWall) - begin;
    few.cpu();  // the next call finds an empty queue
    return ns / kCalls;
  });
}

// Plays in rounds, which all ranks begin together.
void play_for(PlayedOperators& operators, const Mesh& mesh, const MeasureOptions& options) {
  constexpr int kFewest = 4, kMost = 10;
  const double begin = now_ns(CpuClock::kWall);
  for (int round = 0; round < kMost; ++round) {
    const double seconds = (now_ns(CpuClock::kWall) - begin) / kNanoseconds;
    if (mesh.max(seconds, "rounds of operators") > options.seconds && round >= kFewest) return;
    operators.play(torch_device(mesh), options.clock);
  }
}

// Measures collectives on the compute stream.
class LinkMeasurement {
 public:
  LinkMeasurement(const Mesh& mesh, int64_t largest)
      : mesh_(mesh),
        is_cpu_(torch_device(mesh).is_cpu()),
        gathers_(state_of(mesh).gather_communicator(Axis::kWorld)),
        reduces_(state_of(mesh).reduce_communicator(Axis::kWorld)),
        stream_(state_of(mesh).device().make_stream({.name = "rates", .runs_beside = false})),
        whole_of_gathers_(gathers_.allocate(largest)),
        whole_of_reduces_(reduces_.allocate(largest)) {}

  // Return the time of a collective with a whole tensor of `bytes` bytes.
  double gather(int64_t bytes) {
    const CollectivePart part = part_of(whole_of_gathers_, bytes, /*gathers=*/true);
    return time([&] { caches_.fill_last_level(); },
                [&] {
                  gathers_.all_gather({&part, 1}, {.label = "rates"}, *stream_);
                });
  }
  double reduce(int64_t bytes) {
    const CollectivePart part = part_of(whole_of_reduces_, bytes, /*gathers=*/false);
    const auto write_gradients = [&] {
      caches_.fill_last_level();
      std::memset(whole_of_reduces_.data(), 0, static_cast<size_t>(bytes));
    };
    return time(write_gradients, [&] {
      reduces_.reduce_scatter({&part, 1}, ReduceOp::kSum, {.label = "rates"}, *stream_);
    });
  }
  // Returns the part of the time in which this thread used a core.
  double core() const { return wall_ns_ == 0 ? 1 : std::min(1.0, thread_ns_ / wall_ns_); }

 private:
  // In place, as in the engine.
  CollectivePart part_of(Buffer& whole, int64_t bytes, bool gathers) const {
    const int64_t numel = bytes / mesh_.world_size() / size_of(DType::kFloat32);
    auto* const all = static_cast<float*>(whole.data());
    float* const mine = all + numel * mesh_.rank();
    return {.send = gathers ? mine : all, .recv = gathers ? all : mine, .numel = numel};
  }

  // Returns the mean over the ranks of the median of several calls. `prepare` sets the caches
  // ([Note: caches of measurements]).
  double time(const std::function<void()>& prepare, const std::function<void()>& issue) {
    constexpr int kWarmUp = 2, kCalls = 9;
    std::vector<double> times;
    for (int i = 0; i < kWarmUp + kCalls; ++i) {
      if (is_cpu_) prepare();
      gathers_.barrier({.label = "rates"}, *stream_);
      stream_->synchronize();
      const double thread_begin = now_ns(CpuClock::kThread), begin = now_ns(CpuClock::kWall);
      issue();
      stream_->synchronize();
      const double ns = now_ns(CpuClock::kWall) - begin;
      if (i < kWarmUp) continue;
      times.push_back(ns);
      wall_ns_ += ns;
      thread_ns_ += now_ns(CpuClock::kThread) - thread_begin;
    }
    return mesh_.mean(median_of(std::move(times)));
  }

  const Mesh& mesh_;
  const bool is_cpu_;
  Caches caches_;
  Communicator &gathers_, &reduces_;
  const std::unique_ptr<Stream> stream_;
  Buffer whole_of_gathers_, whole_of_reduces_;
  double wall_ns_ = 0, thread_ns_ = 0;
};

// Buffers for kernels of the engine, and a stream.
class KernelMeasurement {
 public:
  KernelMeasurement(const Mesh& mesh, const MeasureOptions& options)
      : numel_(options.kernel_numel),
        clock_(options.clock),
        stream_(state_of(mesh).device().make_stream({.name = "rates", .runs_beside = false})) {
    const at::NoGradGuard no_graph;
    for (at::Tensor& each : tensors_) each = at::zeros({numel_}, torch_device(mesh));
    tensors_[1].fill_(1e-3);
  }

  // Returns bytes per second of `issue`, which reads and writes `accesses` floats per element.
  double rate(int accesses, const std::function<void(Stream&)>& issue) const {
    constexpr double kTime = 0.05;
    const double ns = median_for(kTime, [&] {
      const double begin = now_ns(clock_);
      issue(*stream_);
      stream_->synchronize();
      return now_ns(clock_) - begin;
    });
    return kNanoseconds * accesses * static_cast<double>(numel_) * sizeof(float) / ns;
  }
  float* data(size_t index) const { return tensors_[index].data_ptr<float>(); }
  Stream& stream() const { return *stream_; }

 private:
  const int64_t numel_;
  const CpuClock clock_;
  const std::unique_ptr<Stream> stream_;
  at::Tensor tensors_[4];
};

}  // namespace

void measure_kernels(Rates& rates, const Mesh& mesh, const MeasureOptions& options) {
  const int64_t numel = options.kernel_numel;
  const KernelMeasurement measured(mesh, options);
  float* const destination = measured.data(0);
  float* const source = measured.data(1);
  rates.kernels["accumulate"] = measured.rate(3, [&](Stream& stream) {
    const kernels::AccumulateRun run{.source = source, .destination = destination, .numel = numel};
    kernels::accumulate(stream, {&run, 1});
  });
  rates.kernels["cast_pack"] = measured.rate(2, [&](Stream& stream) {
    const kernels::CastRun run{.source = source, .destination = destination, .numel = numel};
    kernels::cast_pack(stream, {&run, 1});
  });
  rates.kernels["reduce"] = measured.rate(3, [&](Stream& stream) {
    const void* const sources[] = {destination, source};
    const kernels::ReduceRun run{.sources = sources, .out = destination, .numel = numel};
    kernels::reduce(stream, {&run, 1}, ReduceOp::kAvg);
  });
  rates.kernels["update"] = measured.rate(7, [&](Stream& stream) {
    const kernels::UpdateSegment segment{.param = destination,
                                         .grad = source,
                                         .moments = {measured.data(2), measured.data(3)},
                                         .numel = numel};
    kernels::update(stream, {&segment, 1}, kernels::AdamW{}, {});
  });
  rates.kernels["fill"] = measured.rate(1, [&](Stream& stream) {
    const kernels::FillRun run{.data = destination, .numel = numel};
    kernels::fill_zero(stream, {&run, 1});
  });
  // The results overwrite moments.
  const kernels::GradSegment segment{.grad = source, .numel = numel};
  const int64_t scratch_bytes = kernels::norm_scratch_bytes(measured.stream(), {&segment, 1});
  const Buffer scratch =
      state_of(mesh).device().allocate(std::max<int64_t>(scratch_bytes, 16), MemoryKind::kDevice);
  rates.kernels["grad_norm"] = measured.rate(1, [&](Stream& stream) {
    kernels::grad_norm(stream, {&segment, 1}, kernels::NormType::kTwo,
                       {.norm = reinterpret_cast<kernels::GradNorm*>(measured.data(2)),
                        .scratch = scratch.data()});
  });
}

void measure_links(Rates& rates, const Mesh& mesh, const MeasureOptions& options) {
  if (mesh.world_size() == 1) return;
  if (!state_of(mesh).parts().topology.one_host) {
    throw InvalidArgument({.what = "the ranks are on several hosts",
                           .where = "measure_links",
                           .hint = "measure with the ranks of one host"});
  }
  constexpr int64_t kSmallest = 4096;
  LinkMeasurement link(mesh, options.link_bytes);
  LinkRates& host = rates.host;
  host = {};
  for (int64_t bytes = kSmallest; bytes <= options.link_bytes; bytes *= 4) {
    const double sent = static_cast<double>(bytes) * (mesh.world_size() - 1) / mesh.world_size();
    host.gathers.push_back({.bytes = sent, .ns = link.gather(bytes)});
    host.reductions.push_back({.bytes = sent, .ns = link.reduce(bytes)});
  }
  host.core = mesh.mean(link.core());
  host.bytes = kNanoseconds * host.gathers.back().bytes / host.gathers.back().ns;
  rates.base_ns = host.gathers.front().ns;
}

void measure_device(Rates& rates, const Mesh& mesh, const MeasureOptions& options) {
  const at::NoGradGuard no_graph;
  const DeviceMeasurement device(mesh, options);
  rates.copy = device.copy_bytes_per_second();
  for (const c10::ScalarType dtype : options.dtypes) {
    rates.types.push_back(
        {.dtype = dtype, .products = device.products(dtype), .attention = device.attention(dtype)});
  }
  if (!torch_device(mesh).is_cpu()) return;
  rates.cpu = {
      .cores = usable_cores(), .ranks = mesh.world_size(), .threads = at::get_num_threads()};
  // With fewer cores the thread of a stream has no core of its own. The clock counts cores.
  const bool has_core_for_streams = rates.cpu.cores >= rates.cpu.ranks * (rates.cpu.threads + 1);
  rates.contention = has_core_for_streams ? measured_contention(options.clock) : 0;
}

Rates measured_rates(const Mesh& mesh, const MeasureOptions& options, PlayedOperators* operators) {
  const at::Device device = torch_device(mesh);
  Rates rates{.machine = mesh.host()};
  measure_links(rates, mesh, options);
  measure_device(rates, mesh, options);
  measure_kernels(rates, mesh, options);
  for (const char* name : {"products", "attention", "copy", "host", "latency", "contention"}) {
    rates.origins[name] = "measured";
  }
  rates.source = fmt::format("measured (ranks at the same time: {}, threads of each: {})",
                             mesh.world_size(), at::get_num_threads());
  HostTimes host{.per_call_ns = device.is_cpu() ? 0 : time_of_launch(device)};
  if (device.is_cpu()) host = measured_host_times(options.clock);
  rates.host_ns_per_call = host.per_call_ns;
  rates.host_ns_per_kernel = host.per_kernel_ns;
  if (operators != nullptr) {
    play_for(*operators, mesh, options);
    rates.operators = operators->prices(host.between_ns);
  }
  return rates;
}

}  // namespace fsdp
