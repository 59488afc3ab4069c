// Kernels against the limits of the same machine in the same run.
//
// Every iteration times the kernel and then its calibrations, so that all see the same neighbours
// and clock; a row shows the median bandwidth of the kernel and the median of its speed relative to
// each:
//   vs_copy    memcpy that moves as many bytes
//   vs_stream  a loop over the same arrays, read and written alike, that only adds
//   vs_torch   LibTorch's fused kernel on the same memory, one thread
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/adamw.h"
#include "kernels/cast_pack.h"
#include "kernels/grad_norm.h"
#include "kernels/sgd.h"
#include "kernels/target_clones.h"
#include "runtime/buffer.h"
#include "runtime/stream.h"

namespace fsdp {
namespace {

using Work = std::function<void()>;
using Peer = std::pair<std::string, Work>;

constexpr int64_t kNumel = int64_t{1} << 24;  // 64 MiB an array: beyond every cache
constexpr int kIterations = 21;

double seconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void run(benchmark::State& state, int64_t bytes, const Work& kernel,
         const std::vector<Peer>& peers) {
  kernel();
  for (const Peer& peer : peers) peer.second();
  std::vector<double> times;
  std::vector<std::vector<double>> ratios(peers.size());
  for (auto _ : state) {
    times.push_back(seconds(kernel));
    state.SetIterationTime(times.back());
    for (size_t i = 0; i < peers.size(); ++i) {
      ratios[i].push_back(seconds(peers[i].second) / times.back());
    }
  }
  state.counters["GB/s"] = static_cast<double>(bytes) / median(times) * 1e-9;
  for (size_t i = 0; i < peers.size(); ++i) state.counters[peers[i].first] = median(ratios[i]);
}

struct Arrays {
  explicit Arrays(int count) {
    for (int i = 0; i < count; ++i) {
      buffers.push_back(allocate_host(kNumel * 4));
      std::fill_n(at(i), kNumel, 0.01F);
    }
  }
  float* at(int i) const { return static_cast<float*>(buffers[static_cast<size_t>(i)].data()); }
  at::Tensor tensor(int i, at::ScalarType type = at::kFloat) const {
    return at::from_blob(at(i), {kNumel}, type);
  }
  std::vector<Buffer> buffers;
};

// A copy that reads bytes/2 and writes bytes/2.
Peer copy_of(int64_t bytes) {
  auto from = std::make_shared<Buffer>(allocate_host(bytes / 2));
  auto to = std::make_shared<Buffer>(allocate_host(bytes / 2));
  std::memset(from->data(), 1, static_cast<size_t>(bytes / 2));
  return {"vs_copy", [from, to, bytes] {
            std::memcpy(to->data(), from->data(), static_cast<size_t>(bytes / 2));
            benchmark::ClobberMemory();
          }};
}

// Reads four arrays and writes three of them.
FSDP_TARGET_CLONES
void stream_seven(float* __restrict a, const float* __restrict b, float* __restrict c,
                  float* __restrict d) {
#pragma GCC ivdep
  for (int64_t i = 0; i < kNumel; ++i) {
    const float x = b[i];
    a[i] += x;
    c[i] += x;
    d[i] += x;
  }
}

// And writes a narrow fifth.
FSDP_TARGET_CLONES
void stream_eight(float* __restrict a, const float* __restrict b, float* __restrict c,
                  float* __restrict d, uint16_t* __restrict e) {
#pragma GCC ivdep
  for (int64_t i = 0; i < kNumel; ++i) {
    const float x = b[i];
    a[i] += x;
    c[i] += x;
    d[i] += x;
    e[i] = static_cast<uint16_t>(i);
  }
}

void adamw(benchmark::State& state, bool with_copy) {
  at::set_num_threads(1);
  const Arrays ours(5);
  const Arrays other(5);
  const auto stream = make_cpu_stream(CpuStreams::kInline, "bench");
  const int64_t step = 10;
  const kernels::AdamWSegment segment{.param = ours.at(0),
                                      .grad = ours.at(1),
                                      .exp_avg = ours.at(2),
                                      .exp_avg_sq = ours.at(3),
                                      .low_precision_copy = with_copy ? ours.at(4) : nullptr,
                                      .numel = kNumel,
                                      .lr = 1e-5,
                                      .weight_decay = 0.01,
                                      .step = &step};
  const Work kernel = [&] { kernels::adamw(*stream, {&segment, 1}, {}); };
  const Work torch = [&] {
    const at::Tensor param = other.tensor(0);
    at::_fused_adamw_({param}, {other.tensor(1)}, {other.tensor(2)}, {other.tensor(3)}, {},
                      {at::full({}, 10.0F)}, 1e-5, 0.9, 0.999, 0.01, 1e-8, false, false);
    if (with_copy) other.tensor(4).view(at::kBFloat16).narrow(0, 0, kNumel).copy_(param);
  };
  const Work stream_loop = [&] {
    if (with_copy) {
      stream_eight(other.at(0), other.at(1), other.at(2), other.at(3),
                   reinterpret_cast<uint16_t*>(other.at(4)));
    } else {
      stream_seven(other.at(0), other.at(1), other.at(2), other.at(3));
    }
    benchmark::ClobberMemory();
  };
  const int64_t bytes = kNumel * (with_copy ? 30 : 28);
  run(state, bytes, kernel, {copy_of(bytes), {"vs_stream", stream_loop}, {"vs_torch", torch}});
}

void sgd(benchmark::State& state) {
  const Arrays arrays(3);
  const auto stream = make_cpu_stream(CpuStreams::kInline, "bench");
  const int64_t step = 10;
  const kernels::SgdSegment segment{.param = arrays.at(0),
                                    .grad = arrays.at(1),
                                    .momentum_buffer = arrays.at(2),
                                    .numel = kNumel,
                                    .lr = 1e-5,
                                    .weight_decay = 0.01,
                                    .step = &step};
  const auto kernel = [&] { kernels::sgd(*stream, {&segment, 1}, {.momentum = 0.9}); };
  run(state, kNumel * 20, kernel, {copy_of(kNumel * 20)});
}

at::ScalarType torch_type(DType dtype) {
  return dtype == DType::kFloat32    ? at::kFloat
         : dtype == DType::kBFloat16 ? at::kBFloat16
                                     : at::kHalf;
}

void cast(benchmark::State& state, DType from, DType to) {
  at::set_num_threads(1);
  const Arrays arrays(2);
  std::fill_n(reinterpret_cast<uint16_t*>(arrays.at(0)), kNumel, uint16_t{0x3c01});
  const auto stream = make_cpu_stream(CpuStreams::kInline, "bench");
  const kernels::CastRun cast_run{arrays.at(0), arrays.at(1), kNumel, from, to};
  const int64_t bytes = kNumel * (size_of(from) + size_of(to));
  const Work torch = [&] {
    arrays.tensor(1, torch_type(to)).copy_(arrays.tensor(0, torch_type(from)));
  };
  run(state, bytes,
      [&] {
        kernels::cast_pack(*stream, {&cast_run, 1});
      },
      {copy_of(bytes), {"vs_torch", torch}});
}

void cast_many_small(benchmark::State& state) {
  const Arrays arrays(2);
  const auto stream = make_cpu_stream(CpuStreams::kInline, "bench");
  std::vector<kernels::CastRun> runs;
  for (int64_t start = 0; start < kNumel; start += 1024) {
    runs.push_back({arrays.at(0) + start, reinterpret_cast<uint16_t*>(arrays.at(1)) + start, 1024,
                    DType::kFloat32, DType::kBFloat16});
  }
  run(state, kNumel * 6, [&] { kernels::cast_pack(*stream, runs); }, {copy_of(kNumel * 6)});
}

void transpose(benchmark::State& state, DType to) {
  at::set_num_threads(1);
  const Arrays arrays(2);
  const auto stream = make_cpu_stream(CpuStreams::kInline, "bench");
  const kernels::StridedSource source{
      .data = arrays.at(0), .dims = 2, .sizes = {4096, 4096}, .strides = {1, 4096}};
  const int64_t bytes = kNumel * (4 + size_of(to));
  const Work torch = [&] {
    arrays.tensor(1, torch_type(to))
        .view({4096, 4096})
        .copy_(arrays.tensor(0).view({4096, 4096}).t());
  };
  run(state, bytes, [&] { kernels::cast_pack_strided(*stream, source, arrays.at(1), to); },
      {copy_of(bytes), {"vs_torch", torch}});
}

void accumulate(benchmark::State& state, DType from) {
  at::set_num_threads(1);
  const Arrays arrays(2);
  std::fill_n(reinterpret_cast<uint16_t*>(arrays.at(0)), kNumel, uint16_t{0x3c01});
  const auto stream = make_cpu_stream(CpuStreams::kInline, "bench");
  const kernels::AccumulateRun add{
      .source = arrays.at(0), .destination = arrays.at(1), .numel = kNumel, .source_dtype = from};
  const int64_t bytes = kNumel * (8 + size_of(from));
  const Work torch = [&] { arrays.tensor(1).add_(arrays.tensor(0, torch_type(from))); };
  run(state, bytes,
      [&] {
        kernels::accumulate(*stream, {&add, 1});
      },
      {copy_of(bytes), {"vs_torch", torch}});
}

void grad_norm(benchmark::State& state, kernels::NormType type) {
  const Arrays arrays(1);
  const auto stream = make_cpu_stream(CpuStreams::kInline, "bench");
  const kernels::GradSegment segment{arrays.at(0), kNumel};
  kernels::GradNorm result;
  run(state, kNumel * 4,
      [&] {
        kernels::grad_norm(*stream, {&segment, 1}, type, &result);
      },
      {copy_of(kNumel * 4)});
}

void add(const std::string& name, std::function<void(benchmark::State&)> body) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(body))
      ->UseManualTime()
      ->Iterations(kIterations)
      ->Unit(benchmark::kMillisecond);
}

void register_all() {
  using benchmark::State;
  using kernels::NormType;
  add("adamw", [](State& s) { adamw(s, false); });
  add("adamw, bfloat16 copy", [](State& s) { adamw(s, true); });
  add("sgd, momentum", sgd);
  const std::vector<DType> types{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (const DType from : types) {
    for (const DType to : types) {
      if (from != DType::kFloat32 && to != DType::kFloat32) continue;
      add("cast " + std::string(name_of(from)) + " to " + std::string(name_of(to)),
          [=](State& s) { cast(s, from, to); });
    }
  }
  add("cast 16384 runs of 1024", cast_many_small);
  add("transpose float32", [](State& s) { transpose(s, DType::kFloat32); });
  add("transpose to bfloat16", [](State& s) { transpose(s, DType::kBFloat16); });
  add("accumulate float32", [](State& s) { accumulate(s, DType::kFloat32); });
  add("accumulate bfloat16", [](State& s) { accumulate(s, DType::kBFloat16); });
  add("grad_norm 1", [](State& s) { grad_norm(s, NormType::kOne); });
  add("grad_norm 2", [](State& s) { grad_norm(s, NormType::kTwo); });
  add("grad_norm inf", [](State& s) { grad_norm(s, NormType::kInf); });
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  fsdp::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
