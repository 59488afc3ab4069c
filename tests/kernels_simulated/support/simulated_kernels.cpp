#include "kernels_simulated/support/simulated_kernels.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "kernels/cpu/run_over_table.h"
#include "kernels_simulated/support/device_copy.h"
#include "kernels_simulated/support/kernel_gpu.h"
#include "runtime/cpu/cpu_stream.h"

namespace fsdp::test {
namespace {

using namespace kernels;

std::mutex one_at_a_time;  // guards the variables below, because a process has one GPU
uint32_t schedule_seed = 1;
std::vector<testing::sim::LaunchRecord> launches;

// Runs one kernel call on the GPU. add(copy) adds its memory ranges. issue(stream, copy) calls the
// kernel with the device's addresses.
template <class Add, class Issue>
void on_gpu(Add add, Issue issue) {
  const std::lock_guard lock(one_at_a_time);
  KernelGpu gpu(schedule_seed++);
  const auto stream = gpu.device().make_stream({.name = "kernels"});
  DeviceCopy copy(*stream);
  add(copy);
  copy.bring();
  issue(*stream, copy);
  stream->synchronize();
  launches = gpu.take_launches();
  copy.require_inside(launches);
  copy.fetch();
}

// Runs a kernel that takes a table. `add` and `move` are applied to each entry.
template <class Item, class Add, class Move, class Call>
void on_gpu_with_table(Stream& stream, std::span<const Item> items, Add add, Move move, Call call) {
  kernels::cpu::run_over_table(stream, items, [=](std::span<const Item> table) {
    on_gpu(
        [&](DeviceCopy& copy) {
          std::for_each(table.begin(), table.end(), [&](const Item& item) { add(copy, item); });
        },
        [&](Stream& gpu, const DeviceCopy& copy) {
          std::vector<Item> moved(table.begin(), table.end());
          for (Item& item : moved) move(copy, item);
          call(gpu, copy, std::span<const Item>(moved));
          moved.assign(moved.size(), Item{});  // the call must already have copied the table
        });
  });
}

template <class Run>
void add_copied(DeviceCopy& copy, const Run& run) {
  copy.add(run.source, run.numel * size_of(run.source_dtype));
  copy.add(run.destination, run.numel * size_of(run.destination_dtype));
}
template <class Run>
void move_copied(const DeviceCopy& copy, Run& run) {
  run.source = copy.at(run.source);
  run.destination = copy.at(run.destination);
}

void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale) {
  on_gpu_with_table(stream, runs, add_copied<AccumulateRun>, move_copied<AccumulateRun>,
                    [scale](Stream& gpu, const DeviceCopy&, auto table) {
                      gpu_kernels().accumulate(gpu, table, scale);
                    });
}

void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale) {
  on_gpu_with_table(stream, runs, add_copied<CastRun>, move_copied<CastRun>,
                    [scale](Stream& gpu, const DeviceCopy&, auto table) {
                      gpu_kernels().cast_pack(gpu, table, scale);
                    });
}

// Adds the range from the lowest to the highest element of the source.
void add_source(DeviceCopy& copy, const StridedSource& source) {
  int64_t low = 0, high = 0;
  for (int dim = 0; dim < source.dims; ++dim) {
    const int64_t span = (source.sizes[dim] - 1) * source.strides[dim];
    (span < 0 ? low : high) += span;
  }
  const int64_t size = size_of(source.dtype);
  copy.add(static_cast<const std::byte*>(source.data) + low * size, (high - low + 1) * size);
}

template <auto kKernel>
void strided(Stream& stream, const StridedSource& source, void* destination, DType dtype,
             float scale) {
  cpu_stream(stream).run([=] {
    on_gpu(
        [&](DeviceCopy& copy) {
          add_source(copy, source);
          copy.add(destination, source.numel() * size_of(dtype));
        },
        [&](Stream& gpu, const DeviceCopy& copy) {
          StridedSource moved = source;
          moved.data = copy.at(source.data);
          (gpu_kernels().*kKernel)(gpu, moved, copy.at(destination), dtype, scale);
        });
  });
}

void add_updated(DeviceCopy& copy, const UpdateSegment& each) {
  copy.add(each.param, each.numel * 4);
  copy.add(each.grad, each.numel * 4);
  for (const float* moment : each.moments) copy.add(moment, each.numel * 4);
  copy.add(each.low_precision_copy, each.numel * 2);
  copy.add(each.step, sizeof(StepCount));
  copy.add(each.trust_ratio, 4);
}

void move_updated(const DeviceCopy& copy, UpdateSegment& each) {
  each.param = copy.at(each.param);
  each.grad = copy.at(each.grad);
  for (float*& moment : each.moments) moment = copy.at(moment);
  each.low_precision_copy = copy.at(each.low_precision_copy);
  each.step = copy.at(each.step);
  each.trust_ratio = copy.at(each.trust_ratio);
}

void update(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
            const UpdateScalars& scalars) {
  on_gpu_with_table(
      stream, segments,
      [scalars](DeviceCopy& copy, const UpdateSegment& each) {
        add_updated(copy, each);
        copy.add(scalars.grad_scale, 4);  // shared by all entries
        copy.add(scalars.found_inf, 4);
      },
      move_updated,
      [=](Stream& gpu, const DeviceCopy& copy, auto table) {
        gpu_kernels().update(
            gpu, table, rule,
            {.grad_scale = copy.at(scalars.grad_scale), .found_inf = copy.at(scalars.found_inf)});
      });
}

void update_blocks(Stream& stream, std::span<const BlockSegment> segments, const AdamW& rule,
                   const UpdateScalars& scalars) {
  on_gpu_with_table(
      stream, segments,
      [scalars](DeviceCopy& copy, const BlockSegment& each) {
        const int64_t numel = each.elements.numel;
        add_updated(copy, each.elements);
        for (const QuantizedMoment& moment : {each.exp_avg, each.exp_avg_sq}) {
          copy.add(moment.codes, numel);
          copy.add(moment.absmax, (numel + kQuantizedBlock - 1) / kQuantizedBlock * 4);
        }
        copy.add(scalars.grad_scale, 4);  // shared by all entries
        copy.add(scalars.found_inf, 4);
      },
      [](const DeviceCopy& copy, BlockSegment& each) {
        move_updated(copy, each.elements);
        for (QuantizedMoment* moment : {&each.exp_avg, &each.exp_avg_sq}) {
          moment->codes = copy.at(moment->codes);
          moment->absmax = copy.at(moment->absmax);
        }
      },
      [=](Stream& gpu, const DeviceCopy& copy, auto table) {
        gpu_kernels().update_blocks(
            gpu, table, rule,
            {.grad_scale = copy.at(scalars.grad_scale), .found_inf = copy.at(scalars.found_inf)});
      });
}

void sum_squares(Stream& stream, std::span<const SumNode> nodes, const UpdateRule& rule,
                 const float* grad_scale, void* scratch) {
  on_gpu_with_table(
      stream, nodes,
      [=, bytes = sum_scratch_bytes(nodes)](DeviceCopy& copy, const SumNode& each) {
        add_updated(copy, each.elements);
        copy.add(each.sums, sizeof(SquareSums));
        copy.add(grad_scale, 4);
        copy.add(scratch, bytes);
      },
      [](const DeviceCopy& copy, SumNode& each) {
        move_updated(copy, each.elements);
        each.sums = copy.at(each.sums);
      },
      [=](Stream& gpu, const DeviceCopy& copy, auto table) {
        gpu_kernels().sum_squares(gpu, table, rule, copy.at(grad_scale), copy.at(scratch));
      });
}

void trust_ratios(Stream& stream, std::span<const TrustParameter> parameters, SquareSums* sums,
                  const TrustFormula& formula) {
  int32_t last = 0;  // index into the sums, which are one array
  for (const TrustParameter& each : parameters) {
    last = std::max(last, each.root);
    for (int32_t i = 0; i < each.join_count; ++i) last = std::max(last, each.joins[i].from);
  }
  on_gpu_with_table(
      stream, parameters,
      [=](DeviceCopy& copy, const TrustParameter& each) {
        copy.add(each.ratio, 4);
        copy.add(each.joins, each.join_count * static_cast<int64_t>(sizeof(NodeJoin)));
        copy.add(sums, (last + 1) * static_cast<int64_t>(sizeof(SquareSums)));
      },
      [](const DeviceCopy& copy, TrustParameter& each) {
        each.ratio = copy.at(each.ratio);
        each.joins = copy.at(each.joins);
      },
      [=](Stream& gpu, const DeviceCopy& copy, auto table) {
        gpu_kernels().trust_ratios(gpu, table, copy.at(sums), formula);
      });
}

void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs) {
  cpu_stream(stream).run([=] {
    on_gpu(
        [&](DeviceCopy& copy) {
          copy.add(reduced, sizeof(GradNorm));
          for (const float* each : {outputs.norm, outputs.coefficient, outputs.found_inf}) {
            copy.add(each, sizeof(float));
          }
        },
        [&](Stream& gpu, const DeviceCopy& copy) {
          gpu_kernels().clip_coefficient(gpu, copy.at(reduced), type, max_norm,
                                         {.norm = copy.at(outputs.norm),
                                          .coefficient = copy.at(outputs.coefficient),
                                          .found_inf = copy.at(outputs.found_inf)});
        });
  });
}

void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf) {
  on_gpu_with_table(
      stream, std::span<StepCount* const>(counters),
      [found_inf](DeviceCopy& copy, StepCount* each) {
        copy.add(each, sizeof(StepCount));
        copy.add(found_inf, sizeof(float));
      },
      [](const DeviceCopy& copy, StepCount*& each) { each = copy.at(each); },
      [=](Stream& gpu, const DeviceCopy& copy, auto table) {
        gpu_kernels().count_steps(gpu, table, betas, copy.at(found_inf));
      });
}

void digest(Stream& stream, std::span<const DigestRun> runs) {
  on_gpu_with_table(
      stream, runs,
      [](DeviceCopy& copy, const DigestRun& run) {
        copy.add(run.data, run.bytes);
        copy.add(run.digest, sizeof(uint64_t));
        copy.add(run.parts, kDigestParts * 8);
      },
      [](const DeviceCopy& copy, DigestRun& run) {
        run.data = copy.at(run.data);
        run.digest = copy.at(run.digest);
        run.parts = copy.at(run.parts);
      },
      [](Stream& gpu, const DeviceCopy&, auto table) { gpu_kernels().digest(gpu, table); });
}

template <auto kKernel>
void fill(Stream& stream, std::span<const FillRun> runs) {
  on_gpu_with_table(
      stream, runs,
      [](DeviceCopy& copy, const FillRun& run) {
        copy.add(run.data, run.numel * size_of(run.dtype));
      },
      [](const DeviceCopy& copy, FillRun& run) { run.data = copy.at(run.data); },
      [](Stream& gpu, const DeviceCopy&, auto table) { (gpu_kernels().*kKernel)(gpu, table); });
}

int64_t norm_scratch_bytes(std::span<const GradSegment> segments) {
  return gpu_kernels().norm_scratch_bytes(segments);
}

void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               const NormOutputs& outputs) {
  kernels::cpu::run_over_table(stream, segments, [=](std::span<const GradSegment> table) {
    on_gpu(
        [&](DeviceCopy& copy) {
          for (const GradSegment& each : table) copy.add(each.grad, each.numel * 4);
          copy.add(outputs.norm, sizeof(GradNorm));
          copy.add(outputs.first_non_finite, sizeof(double));
          copy.add(outputs.scratch, norm_scratch_bytes(table));
        },
        [&](Stream& gpu, const DeviceCopy& copy) {
          std::vector<GradSegment> moved(table.begin(), table.end());
          for (GradSegment& each : moved) each.grad = copy.at(each.grad);
          gpu_kernels().grad_norm(gpu, moved, type,
                                  {.norm = copy.at(outputs.norm),
                                   .first_non_finite = copy.at(outputs.first_non_finite),
                                   .scratch = copy.at(outputs.scratch)});
        });
  });
}

void reduce(Stream& stream, std::span<const ReduceRun> runs, ReduceOp op) {
  std::vector<std::vector<const void*>> sources;
  for (const ReduceRun& run : runs) sources.emplace_back(run.sources.begin(), run.sources.end());
  kernels::cpu::run_over_table(stream, runs, [=](std::span<const ReduceRun> table) {
    on_gpu(
        [&](DeviceCopy& copy) {
          for (size_t i = 0; i < table.size(); ++i) {
            const int64_t bytes = table[i].numel * size_of(table[i].dtype);
            for (const void* each : sources[i]) copy.add(each, bytes);
            copy.add(table[i].out, bytes);
          }
        },
        [&](Stream& gpu, const DeviceCopy& copy) {
          std::vector<ReduceRun> moved(table.begin(), table.end());
          auto moved_sources = sources;
          for (size_t i = 0; i < table.size(); ++i) {
            for (const void*& each : moved_sources[i]) each = copy.at(each);
            moved[i].sources = moved_sources[i];
            moved[i].out = copy.at(moved[i].out);
          }
          gpu_kernels().reduce(gpu, moved, op);
        });
  });
}

void mark_time(Stream& stream, int64_t* ns) {
  cpu_stream(stream).run([=] {
    on_gpu([&](DeviceCopy& copy) { copy.add(ns, sizeof *ns); },
           [&](Stream& gpu, const DeviceCopy& copy) { gpu_kernels().mark_time(gpu, copy.at(ns)); });
  });
}

void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns) {
  cpu_stream(stream).run([=] {
    on_gpu(
        [&](DeviceCopy& copy) { copy.add(marks.data(), static_cast<int64_t>(marks.size_bytes())); },
        [&](Stream& gpu, const DeviceCopy& copy) {
          gpu_kernels().pause_since(gpu, {copy.at(marks.data()), marks.size()}, ns);
        });
  });
}

class SimulatedDevice final : public Device {
 public:
  std::string_view name() const override { return "the host with a GPU's kernels"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override {
    return make_cpu_stream(*this, options);
  }
  Stream& compute_stream(void* /*native*/) const override { return cpu_device().compute_stream(); }
  Buffer allocate(int64_t bytes, MemoryKind kind) const override {
    return cpu_device().allocate(bytes, kind);
  }
  const KernelTable* kernels() const override {
    static constexpr KernelTable kTable{
        .accumulate = accumulate,
        .accumulate_strided = strided<&KernelTable::accumulate_strided>,
        .cast_pack = cast_pack,
        .cast_pack_strided = strided<&KernelTable::cast_pack_strided>,
        .clip_coefficient = clip_coefficient,
        .count_steps = count_steps,
        .digest = digest,
        .fill_nan = fill<&KernelTable::fill_nan>,
        .fill_zero = fill<&KernelTable::fill_zero>,
        .grad_norm = grad_norm,
        .mark_time = mark_time,
        .norm_scratch_bytes = norm_scratch_bytes,
        .pause_since = pause_since,
        .reduce = reduce,
        .sum_squares = sum_squares,
        .trust_ratios = trust_ratios,
        .update = update,
        .update_blocks = update_blocks};
    return &kTable;
  }
};

}  // namespace

const Device& simulated_device() {
  static const SimulatedDevice device;
  return device;
}

void set_schedule(uint32_t seed) {
  const std::lock_guard lock(one_at_a_time);
  schedule_seed = seed;
}

const std::vector<testing::sim::LaunchRecord>& last_launches() { return launches; }

}  // namespace fsdp::test
