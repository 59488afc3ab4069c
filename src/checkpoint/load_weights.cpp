#include <c10/core/GradMode.h>
#include <fsdp/agreement.h>
#include <fsdp/engine.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/loaded_buffers.h"
#include "checkpoint/main_state_writer.h"
#include "checkpoint/read_interval.h"
#include "checkpoint/weight_match.h"
#include "engine/engine_parts.h"
#include "fsdp/checkpoint.h"
#include "io/stored_weights.h"

namespace fsdp {
namespace {

constexpr std::string_view kReading = "reading the weights";

// A buffer and its new value. The value is assigned after all ranks have read their files without
// an error.
struct LoadedBuffer {
  at::Tensor buffer;
  at::Tensor value;  // on the host
};

struct Loaded {
  LoadReport report;
  std::vector<LoadedBuffer> buffers;
};

// The part of load_weights that one rank does.
class WeightLoad {
 public:
  explicit WeightLoad(const EngineParts& engine) : engine_(engine) {
    // Collects all names of each tensor. A tied parameter has several names, but the layout has
    // only one of them.
    std::map<const c10::TensorImpl*, std::vector<std::string>> names;
    for (const auto& item : engine.model.root->named_parameters()) {
      if (item.value().defined()) {
        names[item.value().unsafeGetTensorImpl()].push_back(item.key());
      }
    }
    for (const auto& unit : engine.model.units) {
      const ShardUnit& shard = *unit->shard;
      for (size_t i = 0; i < shard.tensors().size(); ++i) {
        const ParameterSpec& spec = shard.layout().parameters()[i];
        std::vector<std::string> aliases = names[shard.tensors()[i].unsafeGetTensorImpl()];
        std::erase(aliases, spec.fqn);
        expected_.push_back({.fqn = spec.fqn, .shape = spec.shape, .aliases = std::move(aliases)});
      }
    }
    parameters_ = expected_.size();
    for (LoadableBuffer& each : loadable_buffers(*engine.model.root)) {
      expected_.push_back({.fqn = each.fqn,
                           .shape = each.buffer.sizes().vec(),
                           .aliases = std::move(each.aliases),
                           .buffer = stored_type(each.buffer.scalar_type())});
      buffers_.push_back(std::move(each.buffer));
    }
  }

  Loaded run(const WeightsFiles& files, const LoadOptions& options) const {
    const at::NoGradGuard no_grad;
    const Mesh& mesh = engine_.context->mesh;
    // Names and shapes are checked first, so no value is read or written if the files do not fit.
    MatchedWeights matched = match_weights(files, expected_, options);
    // Each rank verifies the check sums of its share of the records. Together the ranks verify all
    // records.
    for (const WeightsFile* file : files.files) file->check_sums(mesh.rank(), mesh.world_size());
    load_parameters(matched);
    Loaded loaded;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      // Every rank reads whole buffers, because buffers are replicated.
      const std::optional<WeightSource>& source = matched.sources[parameters_ + i];
      if (source)
        loaded.buffers.push_back({buffers_[i], read_whole(*source->file, *source->tensor)});
    }
    check_copies(matched);
    loaded.report = std::move(matched.report);
    return loaded;
  }

 private:
  // Calls `call` for each parameter with three arguments: the index of the parameter among the
  // parameters of all units, this rank's interval of the parameter, and the address of this
  // interval in the main shard.
  template <class Call>
  void visit_parameters(const Call& call) const {
    size_t index = 0;
    for (const auto& unit : engine_.model.units) {
      const ShardUnit& shard = *unit->shard;
      for (size_t i = 0; i < shard.tensors().size(); ++i, ++index) {
        const Interval& local = shard.main().local(static_cast<int>(i));
        const MemoryInterval interval{.strides = shard.layout().parameters()[i].strides,
                                      .begin = local.begin,
                                      .numel = local.numel};
        float* place =
            shard.main().data(shard.layout().segment_of(static_cast<int>(i))) + local.offset;
        call(index, interval, place);
      }
    }
  }

  void load_parameters(const MatchedWeights& matched) const {
    const MainStateWriter writer(*engine_.context);
    visit_parameters([&](size_t index, const MemoryInterval& interval, float* place) {
      const std::optional<WeightSource>& source = matched.sources[index];
      if (!source) return;
      read_interval(
          *source->file, *source->tensor, interval,
          [&](int64_t at, std::span<const float> values) { writer.write(place + at, values); });
    });
  }

  // Compares copies of tied weights. For a parameter, each rank compares its own interval. For a
  // buffer, each rank compares the whole buffer.
  void check_copies(const MatchedWeights& matched) const {
    for (const MatchedWeights::Copy& copy : matched.copies) {
      if (copy.of < parameters_) continue;
      const WeightSource& source = *matched.sources[copy.of];
      const at::Tensor value = read_whole(*source.file, *source.tensor);
      if (!value.equal(read_whole(*copy.source.file, *copy.source.tensor).to(value.dtype()))) {
        refuse_copy(matched, copy);
      }
    }
    visit_parameters([&](size_t index, const MemoryInterval& interval, float*) {
      for (const MatchedWeights::Copy& copy : matched.copies) {
        if (copy.of == index && !are_equal(*matched.sources[index], copy.source, interval)) {
          refuse_copy(matched, copy);
        }
      }
    });
  }

  // Returns true if both sources have the same values in the interval. The chunks of `a` and `b`
  // may differ in size, so for each chunk of `a` the same elements of `b` are read separately.
  static bool are_equal(const WeightSource& a, const WeightSource& b,
                        const MemoryInterval& interval) {
    bool equal = true;
    read_interval(*a.file, *a.tensor, interval, [&](int64_t at, std::span<const float> piece) {
      const MemoryInterval part{
          .strides = interval.strides, .begin = interval.begin + at, .numel = std::ssize(piece)};
      read_interval(*b.file, *b.tensor, part, [&](int64_t from, std::span<const float> values) {
        equal &= std::ranges::equal(values, piece.subspan(from, values.size()));
      });
    });
    return equal;
  }

  const EngineParts& engine_;
  std::vector<ExpectedTensor> expected_;  // parameters, then buffers
  size_t parameters_ = 0;
  std::vector<at::Tensor> buffers_;
};

// Loads from files of any format. The report's notes begin with `notes`.
Loaded load_files(const EngineParts& engine, WeightsFiles files, const LoadOptions& options,
                  std::span<const std::string> notes) {
  std::optional<SafetensorsWeights> instead;
  if (options.instead != nullptr) files.instead = &instead.emplace(*options.instead);
  Loaded loaded = WeightLoad(engine).run(files, options);
  loaded.report.notes.insert(loaded.report.notes.begin(), notes.begin(), notes.end());
  return loaded;
}

LoadReport load_on_all_ranks(Engine& engine,
                             const std::function<Loaded(const EngineParts&)>& load) {
  EngineParts& state = state_of(engine);
  state.require_between_passes("load_weights");
  Loaded loaded;
  const Outcome outcome = run_on_all_ranks(engine.mesh(), kReading, [&] { loaded = load(state); });
  // Shards are marked as changed even after a failure, because some intervals may have been written
  // before it.
  {
    const std::lock_guard lock(state.scheduler->mutex);
    for (const auto& unit : state.model.units) unit->shard->mark_changed(/*copies_written=*/false);
  }
  throw_on_all_ranks(engine.mesh(), outcome);
  // Buffers are assigned on this thread, not on the thread that read the files. So the stream of
  // this thread copies the values after the work that this thread issued to it earlier.
  const at::NoGradGuard no_grad;
  for (const LoadedBuffer& each : loaded.buffers) at::Tensor(each.buffer).copy_(each.value);
  return std::move(loaded.report);
}

}  // namespace

LoadReport load_weights(Engine& engine, std::span<const SafetensorsFile> files,
                        const LoadOptions& options) {
  return load_on_all_ranks(engine, [&](const EngineParts& state) {
    // A deque is used because `from` points to elements of `weights` while more elements are added.
    std::deque<SafetensorsWeights> weights;
    WeightsFiles from;
    for (const SafetensorsFile& file : files) from.files.push_back(&weights.emplace_back(file));
    return load_files(state, std::move(from), options, {});
  });
}

LoadReport load_weights(Engine& engine, const StoredWeights& weights, const LoadOptions& options) {
  return load_on_all_ranks(engine, [&](const EngineParts& state) {
    return load_files(state, {.files = files_of(weights)}, options, weights.notes());
  });
}

LoadReport load_weights(Engine& engine, const std::filesystem::path& path,
                        const LoadOptions& options) {
  return load_on_all_ranks(engine, [&](const EngineParts& state) {
    const StoredWeights weights(path);
    return load_files(state, {.files = files_of(weights)}, options, weights.notes());
  });
}

}  // namespace fsdp
