// Measures one kernel and its contestants, with the same number of bytes, on one thread and in one
// process. Reads a command from each line and prints the GB/s of the kernel's traffic, as the
// mean of REPETITIONS calls.
//   kernels_probe CASE
//   ours | copy | stream | torch | float32  REPETITIONS
// copy: a memcpy of the same number of bytes. stream: a loop that reads and writes the same arrays
// and only adds. torch: LibTorch's own kernel. Before any command its result is compared with ours.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/kernel_streams.h"
#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element/count_steps.h"
#include "kernels/grad_norm.h"
#include "kernels/trust_ratios.h"
#include "kernels/update.h"
#include "kernels/update_blocks.h"
#include "runtime/buffer.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

using Work = std::function<void()>;
using Contestant = std::pair<const std::string, Work>;

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument({.what = what,
                         .where = "kernels_probe",
                         .hint = "see the comment at the top of benchmarks/kernels_probe.cpp"});
}

// Keeps the compiler from removing stores that are never read.
void keep_stores() { asm volatile("" ::: "memory"); }

void keep_value(uint32_t value) { asm volatile("" ::"r"(value) : "memory"); }

// Answers commands until stdin ends.
void serve(int64_t bytes, const std::map<std::string, Work>& contestants) {
  std::string name;
  for (int64_t repetitions = 0; std::cin >> name >> repetitions;) {
    const auto found = contestants.find(name);
    if (found == contestants.end()) refuse(fmt::format("this case has no contestant '{}'", name));
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < repetitions; ++i) found->second();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    fmt::print("{:.4f}\n", static_cast<double>(bytes * repetitions) / spent.count() * 1e-9);
    std::fflush(stdout);
  }
}

at::ScalarType torch_type(DType dtype) {
  return dtype == DType::kFloat32    ? at::kFloat
         : dtype == DType::kBFloat16 ? at::kBFloat16
                                     : at::kHalf;
}

// Arrays of 64 MiB with positive numbers. The first array may have another type.
struct Arrays {
  explicit Arrays(int count, DType first = DType::kFloat32) {
    const at::Tensor values = at::arange(kNumel, at::kFloat).remainder_(1021).add_(1).mul_(0.01);
    for (int i = 0; i < count; ++i) {
      buffers.push_back(allocate_host(kNumel * 4));
      tensor(i, i == 0 ? first : DType::kFloat32).copy_(values);
    }
  }
  float* at(int i) const { return static_cast<float*>(buffers[static_cast<size_t>(i)].data()); }
  at::Tensor tensor(int i, DType type = DType::kFloat32) const {
    return at::from_blob(at(i), {kNumel}, torch_type(type));
  }
  std::vector<Buffer> buffers;
};

void check_close(const at::Tensor& ours, const at::Tensor& torch, double tolerance = 0) {
  if (at::allclose(ours, torch, tolerance, 0)) return;
  throw StateError({.what = "the results of fsdp and LibTorch differ",
                    .where = "kernels_probe",
                    .hint = "correct the result first: the time of a wrong result does not count"});
}

// Returns a copy that reads bytes/2 and writes bytes/2.
Contestant copy_of(int64_t bytes) {
  auto from = std::make_shared<Buffer>(allocate_host(bytes / 2));
  auto to = std::make_shared<Buffer>(allocate_host(bytes / 2));
  std::memset(from->data(), 1, static_cast<size_t>(bytes / 2));
  return {"copy", [from, to, bytes] {
            std::memcpy(to->data(), from->data(), static_cast<size_t>(bytes / 2));
            keep_stores();
          }};
}

// Returns a segment of AdamW after ten steps: parameter, gradient and two moments.
kernels::UpdateSegment segment_of(const Arrays& arrays) {
  static const kernels::StepCount step = kernels::count_at(10, {.beta1 = 0.9, .beta2 = 0.999});
  return {.param = arrays.at(0),
          .grad = arrays.at(1),
          .moments = {arrays.at(2), arrays.at(3)},
          .numel = kNumel,
          .lr = 1e-5,
          .weight_decay = 0.01,
          .step = &step};
}

void adamw(bool with_copy) {
  const Arrays ours(5);
  const Arrays other(5);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  kernels::UpdateSegment segment = segment_of(ours);
  if (with_copy) segment.low_precision_copy = ours.at(4);
  const Work kernel = [&] { kernels::update(*stream, {&segment, 1}, kernels::AdamW{}); };
  const Work torch = [&] {
    const at::Tensor param = other.tensor(0);
    at::_fused_adamw_({param}, {other.tensor(1)}, {other.tensor(2)}, {other.tensor(3)}, {},
                      {at::full({}, 10.0F)}, 1e-5, 0.9, 0.999, 0.01, 1e-8, false, false);
    if (with_copy) other.tensor(4, DType::kBFloat16).copy_(param);
  };
  const Work stream_loop = [&] {
    if (with_copy) {
      stream_adamw<true>(other.at(0), other.at(1), other.at(2), other.at(3),
                         reinterpret_cast<uint16_t*>(other.at(4)));
    } else {
      stream_adamw<false>(other.at(0), other.at(1), other.at(2), other.at(3));
    }
    keep_stores();
  };
  kernel();
  torch();
  check_close(ours.tensor(0), other.tensor(0), 1e-6);
  if (with_copy) {
    check_close(ours.tensor(4, DType::kBFloat16), other.tensor(4, DType::kBFloat16), 1e-2);
  }
  const int64_t bytes = kNumel * (with_copy ? 30 : 28);
  serve(bytes, {{"ours", kernel}, {"torch", torch}, {"stream", stream_loop}, copy_of(bytes)});
}

// Reads and writes the arrays of an update with this number of moments, and only adds.
void stream_update(const Arrays& arrays, int moments) {
  if (moments == 2) {
    stream_adamw<false>(arrays.at(0), arrays.at(1), arrays.at(2), arrays.at(3));
  } else if (moments == 0) {
    stream_three(arrays.at(0), arrays.at(1));
  } else {
    stream_five(arrays.at(0), arrays.at(1), arrays.at(2));
  }
  keep_stores();
}

using TorchUpdate = std::function<void(const Arrays&)>;

// `torch` is LibTorch's kernel for the rule, if it has one.
void updates(const kernels::UpdateRule& rule, int moments, const TorchUpdate& torch = {}) {
  const Arrays arrays(4);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  const kernels::UpdateSegment segment = segment_of(arrays);
  const Work kernel = [&] { kernels::update(*stream, {&segment, 1}, rule); };
  const Arrays other(4);
  const Work stream_loop = [&] { stream_update(other, moments); };
  const int64_t bytes = kNumel * (12 + 8 * moments);
  std::map<std::string, Work> contestants{
      {"ours", kernel}, {"stream", stream_loop}, copy_of(bytes)};
  if (torch) {
    const Arrays theirs(4);
    kernel();
    torch(theirs);
    check_close(arrays.tensor(0), theirs.tensor(0), 1e-6);
    contestants["torch"] = [&] { torch(other); };
  }
  serve(bytes, contestants);
}

void torch_sgd(const Arrays& arrays) {
  at::_fused_sgd_({arrays.tensor(0)}, {arrays.tensor(1)}, {arrays.tensor(2)},
                  /*weight_decay=*/0.01, /*momentum=*/0.9, /*lr=*/1e-5, /*dampening=*/0.0,
                  /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
}

// AdamW with quantized moments. "float32" is AdamW with moments in float32, on as many elements.
void quantized_adamw() {
  const Arrays arrays(4), other(4);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  const auto moment = [&](int array) {
    auto* codes = reinterpret_cast<uint8_t*>(arrays.at(array));
    return kernels::QuantizedMoment{codes, reinterpret_cast<float*>(codes + kNumel)};
  };
  for (const int array : {2, 3}) std::memset(arrays.at(array), 0, kNumel * 4);
  const kernels::BlockSegment segment{segment_of(arrays), moment(2), moment(3)};
  const kernels::UpdateSegment plain = segment_of(other);
  const Work kernel = [&] { kernels::update_blocks(*stream, {&segment, 1}, kernels::AdamW{}); };
  const Work float32 = [&] { kernels::update(*stream, {&plain, 1}, kernels::AdamW{}); };
  const int64_t bytes = kNumel * 16 + kNumel / kernels::kQuantizedBlock * 16;
  serve(bytes, {{"ours", kernel}, {"float32", float32}, copy_of(bytes)});
}

// A step of a rule with trust ratios: one pass reads for the norms, and one updates. The second
// pass is left out if `moments` is empty. The stream reads and writes the same arrays in as many
// passes.
void trust_ratio_step(const kernels::UpdateRule& rule, int arrays_of_norms,
                      std::optional<int> moments) {
  const Arrays arrays(4), other(4);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  const float ratio = 1;
  kernels::UpdateSegment segment = segment_of(arrays);
  segment.trust_ratio = &ratio;
  kernels::SquareSums sums;
  const kernels::SumNode node{.elements = segment, .sums = &sums};
  const Buffer scratch = allocate_host(kernels::sum_scratch_bytes({&node, 1}));
  const at::Tensor power = arrays.tensor(0).to(at::kDouble).square_().sum();
  const Work kernel = [&] {
    kernels::sum_squares(*stream, {&node, 1}, rule, nullptr, scratch.data());
    if (moments) kernels::update(*stream, {&segment, 1}, rule);
  };
  uint32_t read = 0;
  const Work stream_loop = [&] {
    for (int i = 0; i < arrays_of_norms; ++i) {
      read += stream_one(reinterpret_cast<const uint32_t*>(other.at(i)));
    }
    if (moments) stream_update(other, *moments);
    keep_value(read);
  };
  kernel();
  check_close(at::full({}, sums.param, at::kDouble), power, 1e-12);
  const int64_t bytes = kNumel * (4 * arrays_of_norms + (moments ? 12 + 8 * *moments : 0));
  serve(bytes, {{"ours", kernel}, {"stream", stream_loop}, copy_of(bytes)});
}

// In the cases below LibTorch writes to its own destination.

void cast(DType from, DType to) {
  const Arrays arrays(3, from);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  const kernels::CastRun run{arrays.at(0), arrays.at(1), kNumel, from, to};
  const Work kernel = [&] { kernels::cast_pack(*stream, {&run, 1}); };
  const Work torch = [&] { arrays.tensor(2, to).copy_(arrays.tensor(0, from)); };
  kernel();
  torch();
  check_close(arrays.tensor(1, to), arrays.tensor(2, to));
  const int64_t bytes = kNumel * (size_of(from) + size_of(to));
  serve(bytes, {{"ours", kernel}, {"torch", torch}, copy_of(bytes)});
}

void cast_many_small() {
  const Arrays arrays(2);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  std::vector<kernels::CastRun> runs;
  for (int64_t start = 0; start < kNumel; start += 1024) {
    runs.push_back({arrays.at(0) + start, reinterpret_cast<uint16_t*>(arrays.at(1)) + start, 1024,
                    DType::kFloat32, DType::kBFloat16});
  }
  const Work kernel = [&] { kernels::cast_pack(*stream, runs); };
  serve(kNumel * 6, {{"ours", kernel}, copy_of(kNumel * 6)});
}

void transpose(DType to) {
  const Arrays arrays(3);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  const kernels::StridedSource source{
      .data = arrays.at(0), .dims = 2, .sizes = {4096, 4096}, .strides = {1, 4096}};
  const Work kernel = [&] { kernels::cast_pack_strided(*stream, source, arrays.at(1), to); };
  const Work torch = [&] {
    arrays.tensor(2, to).view({4096, 4096}).copy_(arrays.tensor(0).view({4096, 4096}).t());
  };
  kernel();
  torch();
  check_close(arrays.tensor(1, to), arrays.tensor(2, to));
  const int64_t bytes = kNumel * (4 + size_of(to));
  serve(bytes, {{"ours", kernel}, {"torch", torch}, copy_of(bytes)});
}

void accumulate(DType from) {
  const Arrays arrays(3, from);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  const kernels::AccumulateRun run{
      .source = arrays.at(0), .destination = arrays.at(1), .numel = kNumel, .source_dtype = from};
  const Work kernel = [&] { kernels::accumulate(*stream, {&run, 1}); };
  const Work torch = [&] { arrays.tensor(2).add_(arrays.tensor(0, from)); };
  kernel();
  torch();
  check_close(arrays.tensor(1), arrays.tensor(2));
  const int64_t bytes = kNumel * (8 + size_of(from));
  serve(bytes, {{"ours", kernel}, {"torch", torch}, copy_of(bytes)});
}

// Compares the norm with LibTorch's in float64. LibTorch adds in another order, hence a tolerance.
void check_norm(const kernels::GradNorm& ours, const at::Tensor& grad, kernels::NormType type) {
  const at::Tensor terms = grad.to(at::kDouble).abs_();
  const at::Tensor power = type == kernels::NormType::kOne   ? terms.sum()
                           : type == kernels::NormType::kTwo ? terms.square().sum()
                                                             : terms.max();
  check_close(at::full({}, ours.power, at::kDouble), power, 1e-12);
}

void grad_norm(kernels::NormType type) {
  const Arrays arrays(1);
  const auto stream = fsdp::cpu_device().make_stream({.name = "bench", .runs_beside = false});
  const kernels::GradSegment segment{arrays.at(0), kNumel};
  kernels::GradNorm result;
  const Work kernel = [&] { kernels::grad_norm(*stream, {&segment, 1}, type, {.norm = &result}); };
  uint32_t read = 0;
  const Work stream_loop = [&] {
    read += stream_one(reinterpret_cast<const uint32_t*>(arrays.at(0)));
    keep_value(read);
  };
  kernel();
  check_norm(result, arrays.tensor(0), type);
  serve(kNumel * 4, {{"ours", kernel}, {"stream", stream_loop}, copy_of(kNumel * 4)});
}

const std::map<std::string, Work>& cases() {
  constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16;
  static const std::map<std::string, Work> table = {
      {"adamw", [] { adamw(false); }},
      {"adamw, bfloat16 copy", [] { adamw(true); }},
      {"adamw, quantized moments", quantized_adamw},
      {"sgd, momentum", [] { updates(kernels::Sgd{.momentum = 0.9}, 1, torch_sgd); }},
      {"radam", [] { updates(kernels::RAdam{}, 2); }},
      {"lion", [] { updates(kernels::Lion{}, 1); }},
      {"lamb", [] { updates(kernels::Lamb{}, 2); }},
      {"average", [] { updates(kernels::Average{}, 0); }},
      {"norms of lamb", [] { trust_ratio_step(kernels::Lamb{}, 4, std::nullopt); }},
      {"norms of lars", [] { trust_ratio_step(kernels::Sgd{}, 2, std::nullopt); }},
      {"lamb, both passes", [] { trust_ratio_step(kernels::Lamb{}, 4, 2); }},
      {"lars, both passes", [] { trust_ratio_step(kernels::Sgd{.momentum = 0.9}, 2, 1); }},
      {"cast float32 to float32", [] { cast(kF32, kF32); }},
      {"cast float32 to bfloat16", [] { cast(kF32, kBf16); }},
      {"cast float32 to float16", [] { cast(kF32, kF16); }},
      {"cast bfloat16 to float32", [] { cast(kBf16, kF32); }},
      {"cast float16 to float32", [] { cast(kF16, kF32); }},
      {"cast 16384 runs of 1024", cast_many_small},
      {"transpose float32", [] { transpose(kF32); }},
      {"transpose to bfloat16", [] { transpose(kBf16); }},
      {"accumulate float32", [] { accumulate(kF32); }},
      {"accumulate bfloat16", [] { accumulate(kBf16); }},
      {"grad_norm 1", [] { grad_norm(kernels::NormType::kOne); }},
      {"grad_norm 2", [] { grad_norm(kernels::NormType::kTwo); }},
      {"grad_norm inf", [] { grad_norm(kernels::NormType::kInf); }},
  };
  return table;
}

void run(const std::string& name) {
  at::set_num_threads(1);
  const auto found = cases().find(name);
  if (found == cases().end()) refuse(fmt::format("there is no case '{}'", name));
  found->second();
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: kernels_probe CASE\n");
    return 64;
  }
  try {
    fsdp::run(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
