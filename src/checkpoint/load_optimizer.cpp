#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/agreement.h>

#include <optional>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "checkpoint/main_state_writer.h"
#include "checkpoint/optimizer_file.h"
#include "checkpoint/read_interval.h"
#include "checkpoint/weights_digest.h"
#include "fsdp/checkpoint.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/name_list.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

constexpr std::string_view kReadingState = "reading the optimizer's state";

using Parameters = std::vector<OptimizedParameter>;

// A moment of a parameter, and the tensor of the file that stores it. A quantized moment has the
// codes in `tensor`.
struct MomentSource {
  const OptimizedParameter* parameter;
  size_t moment;
  const MappedTensor* tensor;
  const MappedTensor* absmax = nullptr;  // null: the moment is not quantized
};

[[noreturn]] void refuse(const SafetensorsFile& file, std::string what, std::string cause,
                         std::string hint) {
  throw IoError(ExitCode::kCorruptData, {.what = std::move(what),
                                         .where = file.path().string(),
                                         .cause = std::move(cause),
                                         .hint = std::move(hint)});
}

std::string in_words(const std::vector<std::string>& notes) {
  return fmt::format("{}", fmt::join(notes, ", "));
}

// An open file whose content fits the optimizer. The constructor checks everything except the
// values of the moments. The object must not be moved, because `sources_` points into `weights_`
// and `parameters`.
class OptimizerSource {
 public:
  OptimizerSource(const std::filesystem::path& path, const Optimizer::State& state,
                  Parameters trained)
      : file_(path),
        weights_(file_),
        state_(state),
        head(read_optimizer_head(file_, state)),
        parameters(std::move(trained)) {
    check_parameters();
    std::map<std::string_view, const MappedTensor*> stored;
    // take() removes each tensor that it uses. The remaining tensors do not belong to this
    // optimizer.
    for (const MappedTensor& tensor : weights_.tensors()) stored[tensor.name] = &tensor;
    for (OptimizedParameter& parameter : parameters) take(parameter, stored);
    if (stored.empty()) return;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : stored) names.emplace_back(name);
    refuse(file_,
           fmt::format("the state has {} that the optimizer does not have: {}",
                       counted(names, "tensor"), list_of(names)),
           in_words(head.notes), "make the optimizer with the options that it was saved with");
  }

  // Throws IoError kCorruptData if the file's digest of the weights differs from `digest`. A file
  // without a digest is accepted.
  void check_weights(uint64_t digest) const {
    if (head.weights.empty() || head.weights == digest_text(digest)) return;
    refuse(file_,
           fmt::format("the state belongs to other weights: it was saved at step {}, this "
                       "optimizer is at step {}",
                       head.steps, state_.applied()),
           fmt::format("the saved weights have the digest {}, the model's weights {}",
                       quoted_name(head.weights), digest_text(digest)),
           "load the float32 weights of that step first; to continue with other weights on purpose "
           "(in lower precision, or changed since then), set "
           "LoadOptimizerOptions::beside_other_weights");
  }

  // Reads this rank's interval of every moment and calls take(source, at, values) for each chunk of
  // the interval.
  void read(
      const std::function<void(const MomentSource&, int64_t, std::span<const float>)>& take) const {
    for (const MomentSource& source : sources_) {
      const OptimizedParameter& parameter = *source.parameter;
      const Interval& local = local_of(source);
      if (source.absmax != nullptr) continue;
      read_interval(weights_, *source.tensor,
                    {.strides = spec_of(state_, parameter).strides,
                     .begin = local.begin,
                     .numel = local.numel},
                    [&](int64_t at, std::span<const float> values) { take(source, at, values); });
    }
  }

  // Calls take(source, codes, absmax) with this rank's interval of every quantized moment.
  using Bytes = std::span<const std::byte>;
  void read_blocks(const std::function<void(const MomentSource&, Bytes, Bytes)>& take) const {
    for (const MomentSource& source : sources_) {
      const Interval& local = local_of(source);
      if (source.absmax == nullptr || local.numel == 0) continue;
      const auto part = [](const MappedTensor& of, int64_t begin, int64_t bytes) {
        return of.bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
      };
      constexpr int64_t kFloat = size_of(DType::kFloat32);
      take(source, part(*source.tensor, local.begin, local.numel),
           part(*source.absmax, local.begin / kernels::kQuantizedBlock * kFloat,
                divide_up(local.numel, kernels::kQuantizedBlock) * kFloat));
    }
  }

 private:
  const Interval& local_of(const MomentSource& source) const {
    const OptimizedParameter& parameter = *source.parameter;
    return state_.engine.model.units[parameter.unit]->shard->main().local(parameter.parameter);
  }

  // Checks that the file and the optimizer have the same parameters. The file stores a count of
  // steps for each of its parameters, so the names of these counts contain the FQN of each
  // parameter in the file.
  void check_parameters() const {
    std::set<std::string, std::less<>> stored;
    for (const StoredTensor& tensor : file_.tensors()) {
      // The FQN ends at the last dot, because an FQN itself contains dots.
      const size_t dot = tensor.name.rfind('.');
      if (dot != tensor.name.npos && std::string_view(tensor.name).substr(dot + 1) == kStepTensor) {
        stored.insert(tensor.name.substr(0, dot));
      }
    }
    std::vector<std::string> missing;
    for (const OptimizedParameter& parameter : parameters) {
      const std::string& fqn = spec_of(state_, parameter).fqn;
      if (stored.erase(fqn) == 0) missing.push_back(fqn);
    }
    constexpr const char* kHint =
        "load the state of this model; before loading, freeze the parameters that were frozen when "
        "it was saved";
    if (!missing.empty()) {
      refuse(file_,
             fmt::format("the state lacks {} that the optimizer trains: {}",
                         counted(missing, "parameter"), list_of(missing)),
             {}, kHint);
    }
    if (stored.empty()) return;
    const std::vector<std::string> unexpected(stored.begin(), stored.end());
    refuse(file_,
           fmt::format("the state has {} that the optimizer does not train: {}",
                       counted(unexpected, "parameter"), list_of(unexpected)),
           {}, kHint);
  }

  // Finds the parameter's count of steps and its moments among the tensors of the file.
  void take(OptimizedParameter& parameter,
            std::map<std::string_view, const MappedTensor*>& stored) {
    const ParameterSpec& spec = spec_of(state_, parameter);
    const std::string step = state_name(spec.fqn, kStepTensor);
    parameter.steps = read_steps(file_, *file_.find(step));
    stored.erase(step);
    const bool is_quantized = state_.segments().is_quantized(spec);
    if (is_quantized) check_memory_order(spec);
    const std::vector<std::string_view> moments = state_.moment_names();
    for (size_t moment = 0; moment < moments.size(); ++moment) {
      const auto find = [&](std::string_view what, StoredDType dtype,
                            const std::vector<int64_t>& shape) {
        return find_tensor(stored, state_name(spec.fqn, what), dtype, shape);
      };
      MomentSource& source = sources_.emplace_back(MomentSource{
          &parameter, moment,
          find(moments[moment], is_quantized ? StoredDType::kU8 : StoredDType::kF32, spec.shape)});
      if (!is_quantized) continue;
      source.absmax = find(absmax_name(moments[moment]), StoredDType::kF32,
                           {divide_up(spec.numel, kernels::kQuantizedBlock)});
    }
  }

  // Returns the tensor and removes it from `stored`. Throws if it is missing or has another form.
  const MappedTensor* find_tensor(std::map<std::string_view, const MappedTensor*>& stored,
                                  const std::string& name, StoredDType dtype,
                                  const std::vector<int64_t>& shape) const {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      refuse(file_, fmt::format("tensor {} is missing from the state", quoted_name(name)),
             in_words(head.notes), "make the optimizer with the options that it was saved with");
    }
    const MappedTensor& tensor = *found->second;
    if (tensor.dtype != dtype || tensor.shape != shape) {
      refuse(file_,
             fmt::format("tensor {} is {} of shape {}, the optimizer expects {} of shape {}",
                         quoted_name(name), name_of(tensor.dtype), format_shape(tensor.shape),
                         name_of(dtype), format_shape(shape)),
             {}, "load the state of this model: names and shapes must match");
    }
    stored.erase(found);
    return &tensor;
  }

  // Blocks are counted in memory order, so the model must have the memory order of the saved one.
  void check_memory_order(const ParameterSpec& spec) const {
    const auto [key, expected] = memory_order_of(spec);
    const auto metadata = file_.metadata();
    const auto found = metadata.find(key);
    const std::string order = found != metadata.end() ? found->second : std::string();
    if (order == expected) return;
    const auto in_text = [](const std::string& strides) {
      return strides.empty() ? std::string("row-major") : fmt::format("strides {}", strides);
    };
    refuse(file_,
           fmt::format("parameter {} has {} in the state, but {} in the model",
                       quoted_name(spec.fqn), in_text(order), in_text(expected)),
           {}, "build the model with the memory layout of the saved model");
  }

  const SafetensorsFile file_;
  const SafetensorsWeights weights_;
  const Optimizer::State& state_;
  std::vector<MomentSource> sources_;

 public:
  const OptimizerHead head;
  Parameters parameters;  // their counts of steps are those of the file
};

// Writes this rank's values into the optimizer's moments.
void write(const Optimizer::State& state, const OptimizerSource& source) {
  const MainStateWriter writer(*state.engine.context);
  source.read([&](const MomentSource& each, int64_t at, std::span<const float> values) {
    const ShardUnit& shard = *state.engine.model.units[each.parameter->unit]->shard;
    const OptimizedSegment& segment = state.segments().all()[each.parameter->segment];
    // A moment has no elements for parameters that are not trained, so an element may have another
    // offset in the moment than in the slice.
    const int64_t offset = shard.main().local(each.parameter->parameter).offset;
    writer.write(segment.values_at(each.moment, offset) + at, values);
  });
  source.read_blocks([&](const MomentSource& each, std::span<const std::byte> codes,
                         std::span<const std::byte> absmax) {
    const ShardUnit& shard = *state.engine.model.units[each.parameter->unit]->shard;
    const OptimizedSegment& segment = state.segments().all()[each.parameter->segment];
    const kernels::QuantizedMoment to =
        segment.blocks_at(each.moment, shard.main().local(each.parameter->parameter).offset);
    writer.write(reinterpret_cast<std::byte*>(to.codes), codes);
    writer.write(reinterpret_cast<std::byte*>(to.absmax), absmax);
  });
}

}  // namespace

Outcome try_to_load_optimizer(Optimizer& optimizer, const std::filesystem::path& path,
                              OptimizerReport& report, const LoadOptimizerOptions& options) {
  Optimizer::State& state = state_of(optimizer);
  state.engine.require_between_passes("load_optimizer");
  // Makes moments for the parameters that were unfrozen since the last step. The file must have
  // moments for all parameters that are trained now, including these.
  state.follow_trained();
  const Parameters parameters = state.segments().parameters();  // waits for issued steps
  const Mesh& mesh = state.engine.context->mesh;
  // The digest needs a collective, and the work of run_on_all_ranks must not issue one. So the
  // digest is computed before this work.
  const uint64_t weights = options.beside_other_weights ? 0 : digest_of_weights(state.engine);
  std::optional<OptimizerSource> source;
  // All ranks read and check everything before any rank writes. Thus the file cannot be refused
  // after some values were written, and a refusal leaves the optimizer unchanged.
  Outcome outcome = run_on_all_ranks(mesh, kReadingState, [&] {
    // Grad mode is thread-local, and the work runs on a separate thread.
    const at::NoGradGuard no_grad;
    source.emplace(path, state, parameters);
    source->read([](const MomentSource&, int64_t, std::span<const float>) {});
    if (!options.beside_other_weights) source->check_weights(weights);
  });
  if (outcome.failed()) return outcome;
  outcome = run_on_all_ranks(mesh, kReadingState, [&] {
    const at::NoGradGuard no_grad;
    write(state, *source);
  });
  if (outcome.failed()) return outcome;
  // Every rank has written its moments. Now the optimizer's own values are set, to the same values
  // on all ranks.
  state.segments().set_counts(source->head.steps, source->parameters);
  optimizer.set_lr(source->head.lr);
  state.set_group_values(source->head.groups);
  report.notes = source->head.notes;
  if (source->head.weights.empty()) {
    report.notes.emplace_back(
        "the file has no digest of its weights: an earlier version of fsdp wrote it");
  }
  return outcome;
}

OptimizerReport load_optimizer(Optimizer& optimizer, const std::filesystem::path& path,
                               const LoadOptimizerOptions& options) {
  OptimizerReport report;
  const Outcome outcome = try_to_load_optimizer(optimizer, path, report, options);
  throw_on_all_ranks(state_of(optimizer).engine.context->mesh, outcome);
  return report;
}

}  // namespace fsdp
