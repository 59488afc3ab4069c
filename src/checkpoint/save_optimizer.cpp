#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "checkpoint/optimizer_file.h"
#include "checkpoint/rank_zero_writer.h"
#include "checkpoint/weights_digest.h"
#include "fsdp/checkpoint.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

constexpr std::string_view kWritingState = "writing the optimizer's state";

using Parameters = std::vector<OptimizedParameter>;

std::vector<TensorSpec> specs_of(const Optimizer::State& state, const Parameters& parameters) {
  std::vector<TensorSpec> specs;
  for (const OptimizedParameter& parameter : parameters) {
    const ParameterSpec& spec = spec_of(state, parameter);
    const bool is_quantized = state.segments().is_quantized(spec);
    for (const std::string_view moment : state.moment_names()) {
      specs.push_back({state_name(spec.fqn, moment),
                       is_quantized ? StoredDType::kU8 : StoredDType::kF32, spec.shape});
      if (!is_quantized) continue;
      specs.push_back({state_name(spec.fqn, absmax_name(moment)),
                       StoredDType::kF32,
                       {divide_up(spec.numel, kernels::kQuantizedBlock)}});
    }
    specs.push_back({state_name(spec.fqn, kStepTensor), StoredDType::kI64, {}});
  }
  return specs;
}

// Gathers one moment of a unit's segments. Every rank gets the whole moment. Collective.
void gather(const Optimizer::State& state, const EngineUnit& unit, size_t moment,
            std::vector<Buffer>& whole) {
  std::vector<float*> slices(unit.shard->layout().segments().size());
  std::vector<Buffer> rooms(slices.size());
  const std::lock_guard lock(state.engine.scheduler->mutex);
  with_place([&] { return unit.describe("gather of optimizer state"); },
             [&] {
               for (const OptimizedSegment& segment : state.segments().all()) {
                 if (segment.unit != unit.index) continue;
                 slices[segment.segment] =
                     state.segments().laid_out(segment, moment, rooms[segment.segment]);
               }
               unit.shard->main().copy_whole(slices, whole);
               // copy_whole does not wait for the copies that it issues. `rooms` is freed when this
               // function returns, so wait until the compute stream has read it.
               const bool any_room = std::ranges::any_of(
                   rooms, [](const Buffer& room) { return static_cast<bool>(room); });
               if (any_room) state.engine.context->streams.compute->synchronize();
             });
}

// A quantized moment of a parameter, in memory order.
struct WholeBlocks {
  std::vector<std::byte> codes, absmax;
};

// Returns a parameter's quantized moment, which `whole` has in the form of
// OptimizedSegments::laid_out.
WholeBlocks blocks_of(const Optimizer::State& state, const OptimizedParameter& parameter,
                      const std::vector<Buffer>& whole) {
  const ShardLayout& layout = state.engine.model.units[parameter.unit]->shard->layout();
  const int segment = layout.segment_of(parameter.parameter);
  const PlacedParameter& place = layout.place_of(parameter.parameter);
  const int64_t blocks = divide_up(place.numel, kernels::kQuantizedBlock);
  const at::Tensor values =
      at::from_blob(
          static_cast<float*>(whole[segment].data()) + place.offset,
          {blocks * kernels::kQuantizedBlock},
          at::TensorOptions().dtype(at::kFloat).device(state.engine.context->streams.torch_device))
          .to(at::kCPU);
  const auto* bytes = static_cast<const std::byte*>(values.const_data_ptr());
  WholeBlocks result;
  for (int slice = 0; slice < layout.ranks(); ++slice) {
    const std::vector<Interval> intervals = layout.intervals(segment, slice);
    const Interval& own = *std::ranges::find(intervals, place.parameter, &Interval::parameter);
    if (own.numel == 0) continue;
    const std::byte* from = bytes + own.begin * size_of(DType::kFloat32);
    const std::byte* scales = from + OptimizedSegments::absmax_bytes(own.numel);
    const int64_t count = divide_up(own.numel, kernels::kQuantizedBlock);
    result.codes.insert(result.codes.end(), from, from + own.numel);
    result.absmax.insert(result.absmax.end(), scales, scales + count * size_of(DType::kFloat32));
  }
  return result;
}

// Returns a parameter's values in `whole`, row-major on the host. On the CPU the result may alias
// `whole`, so use it before the next gather.
at::Tensor rows_of(const Optimizer::State& state, const OptimizedParameter& parameter,
                   const std::vector<Buffer>& whole) {
  const ShardLayout& layout = state.engine.model.units[parameter.unit]->shard->layout();
  const ParameterSpec& spec = layout.parameters()[parameter.parameter];
  auto* data = static_cast<float*>(whole[layout.segment_of(parameter.parameter)].data());
  const at::Device device = state.engine.context->streams.torch_device;
  return at::for_blob(data + layout.place_of(parameter.parameter).offset, spec.shape)
      .strides(spec.strides)
      .options(at::TensorOptions().dtype(at::kFloat).device(device))
      .target_device(device)
      .make_tensor()
      .to(at::kCPU)
      .contiguous();
}

}  // namespace

Outcome try_to_save_optimizer(Optimizer& optimizer, const std::filesystem::path& file) {
  const at::NoGradGuard no_grad;
  Optimizer::State& state = state_of(optimizer);
  state.engine.require_between_passes("save_optimizer");
  state.follow_trained();
  // All ranks derive the same list, and therefore issue the same sequence of collectives.
  const Parameters parameters = state.segments().parameters();
  const std::map<std::string, std::string> metadata =
      optimizer_metadata(state, digest_of_weights(state.engine));
  // `writer` is set on rank 0 only.
  std::optional<SafetensorsWriter> writer;
  const Mesh& mesh = state.engine.context->mesh;
  RankZeroWriter on_zero(mesh, kWritingState);
  const auto append = [&](const std::string& name, const void* bytes, size_t size) {
    writer->append(name, {static_cast<const std::byte*>(bytes), size});
  };
  on_zero.write([&] {
    writer.emplace(file, specs_of(state, parameters), metadata);
    for (const OptimizedParameter& each : parameters) {
      append(state_name(spec_of(state, each).fqn, kStepTensor), &each.steps, sizeof each.steps);
    }
  });
  const std::vector<std::string_view> moments = state.moment_names();
  std::vector<Buffer> whole;
  // Parameters are in the order of units. Each unit is gathered once per moment and freed before
  // the next unit, so no rank needs memory for the whole model.
  for (auto first = parameters.begin(); first != parameters.end();) {
    const EngineUnit& unit = *state.engine.model.units[first->unit];
    const auto end = std::find_if(first, parameters.end(), [&](const OptimizedParameter& each) {
      return each.unit != unit.index;
    });
    // The outcome is equal on all ranks, so after a failure all of them stop gathering.
    for (size_t moment = 0; moment < moments.size() && !on_zero.outcome().failed(); ++moment) {
      gather(state, unit, moment, whole);
      for (auto each = first; each != end; ++each) {
        const std::string& fqn = spec_of(state, *each).fqn;
        if (state.segments().is_quantized(spec_of(state, *each))) {
          const WholeBlocks blocks =
              mesh.rank() == 0 ? blocks_of(state, *each, whole) : WholeBlocks();
          on_zero.write([&] {
            append(state_name(fqn, moments[moment]), blocks.codes.data(), blocks.codes.size());
            append(state_name(fqn, absmax_name(moments[moment])), blocks.absmax.data(),
                   blocks.absmax.size());
          });
          continue;
        }
        // The tensor is converted here and not in the work of on_zero. That work runs on another
        // thread, and its operators would not be ordered after those on this thread's stream.
        const at::Tensor rows = mesh.rank() == 0 ? rows_of(state, *each, whole) : at::Tensor();
        on_zero.write([&] {
          append(state_name(fqn, moments[moment]), rows.const_data_ptr(), rows.nbytes());
        });
      }
    }
    whole.clear();
    first = end;
  }
  on_zero.write([&] { writer->commit(); });
  return on_zero.outcome();
}

void save_optimizer(Optimizer& optimizer, const std::filesystem::path& file) {
  const Outcome outcome = try_to_save_optimizer(optimizer, file);
  throw_on_all_ranks(state_of(optimizer).engine.context->mesh, outcome);
}

}  // namespace fsdp
