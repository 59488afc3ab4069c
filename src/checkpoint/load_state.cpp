#include "checkpoint/load_state.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "checkpoint/main_state_writer.h"
#include "checkpoint/stored_values.h"
#include "checkpoint/training_conditions.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/checkpoint_tensors.h"
#include "io/name_list.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

constexpr std::string_view kReadingCheckpoint = "reading the checkpoint";

[[noreturn]] void refuse(const std::filesystem::path& folder, std::string what, std::string hint) {
  throw IoError(ExitCode::kCorruptData,
                {.what = std::move(what), .where = folder.string(), .hint = std::move(hint)});
}

// The part of load_state that one rank does.
class StateLoad {
 public:
  StateLoad(TrainingState::Parts& state, std::filesystem::path folder,
            const LoadStateOptions& options)
      : state_(state), folder_(std::move(folder)), options_(options) {}

  // Reads and checks everything that this rank needs from the checkpoint. Changes no object.
  void check() {
    stored_.emplace(folder_);
    const CheckpointManifest& manifest = stored_->manifest();
    notes = differences(training_conditions(state_.engine), manifest.conditions);
    if (manifest.world_size != state_.mesh().world_size()) {
      notes.push_back(fmt::format("{} ranks, the checkpoint was saved with {}: bits may differ",
                                  state_.mesh().world_size(), manifest.world_size));
    }
    match_objects();
    for (const auto& [object, stored] : objects_) object->check(manifest, *stored, notes);
    for (const auto& [object, stored] : objects_) object->append_stored_parts(manifest, parts_);
    match_tensors();
    for (const StatePart& part : parts_) {
      visit_stored(part, [](const CheckpointTensors::Piece& piece) { piece.check(); });
    }
  }

  // Copies the values of the checkpoint into this rank's parts.
  void fill() {
    const MainStateWriter writer(*state_.engine.context);
    for (const StatePart& part : parts_) {
      visit_stored(part, [&](const CheckpointTensors::Piece& piece) {
        std::byte* to = part.data + piece.to_bytes;
        piece.read([&](std::span<const std::byte> stored) {
          if (part.stream == nullptr) {
            std::memcpy(to, stored.data(), stored.size());
          } else {
            writer.write(*part.stream, to, stored);
          }
        });
      });
    }
  }

  // Makes the objects set their values to the stored ones.
  void restore() const {
    for (const auto& [object, stored] : objects_) object->restore(manifest(), *stored);
  }

  // Requires: check() was called.
  const CheckpointManifest& manifest() const { return stored_->manifest(); }

  std::vector<std::string> notes;

 private:
  // Finds the stored object of each object that is loaded.
  void match_objects() {
    const std::vector<ManifestObject>& all = manifest().objects;
    std::set<std::string_view> unused;
    for (const ManifestObject& each : all) unused.insert(each.name);
    std::vector<std::string> missing;
    for (StateObject* object : state_.in_restore_order()) {
      if (options_.weights_only && object->order != RestoreOrder::kEngine) {
        unused.erase(object->name);
        continue;
      }
      const auto stored = std::ranges::find(all, object->name, &ManifestObject::name);
      if (stored == all.end()) {
        missing.push_back(object->name);
      } else {
        unused.erase(object->name);
        objects_.emplace_back(object, &*stored);
      }
    }
    if (!missing.empty()) {
      refuse(folder_, fmt::format("the checkpoint lacks {}", list_of(missing)),
             "resume from a checkpoint of this program, or load with weights_only");
    }
    if (unused.empty() || options_.weights_only) return;
    const std::vector<std::string> names(unused.begin(), unused.end());
    refuse(folder_,
           fmt::format("the checkpoint has {}, which the training state lacks", list_of(names)),
           "add it under this name (TrainingState::add), or load with weights_only");
  }

  // Finds the stored tensor of each part, and compares names, shapes and types.
  void match_tensors() {
    const std::vector<ManifestTensor>& all = manifest().tensors;
    std::map<std::string_view, int64_t> stored;
    for (int64_t i = 0; i < std::ssize(all); ++i) stored[all[i].name] = i;
    if (options_.exclude) {
      std::erase_if(parts_, [&](const StatePart& part) { return options_.exclude(part.name); });
      std::erase_if(stored, [&](const auto& each) { return options_.exclude(each.first); });
    }
    std::vector<std::string> missing;
    for (const StatePart& part : parts_) {
      const auto found = stored.find(part.name);
      if (found == stored.end()) {
        missing.push_back(part.name);
        continue;
      }
      require_equal(part, all[found->second]);
      tensor_of_.push_back(found->second);
      stored.erase(found);
    }
    if (!missing.empty()) {
      refuse(
          folder_,
          fmt::format("the checkpoint lacks {}: {}", counted(missing, "tensor"), list_of(missing)),
          "resume with the model and the optimizers of the saved run");
    }
    // Random states may remain in `stored`, because a run on the CPU does not need those of GPUs.
    std::erase_if(stored, [&](const auto& each) {
      return each.first.starts_with("random/") ||
             (options_.weights_only && !is_of_model(state_, each.first));
    });
    if (stored.empty()) return;
    std::vector<std::string> names;
    for (const auto& [name, index] : stored) names.emplace_back(name);
    refuse(folder_,
           fmt::format("the checkpoint has {} that the training state lacks: {}",
                       counted(names, "tensor"), list_of(names)),
           "resume with the model and the optimizers of the saved run");
  }

  void require_equal(const StatePart& part, const ManifestTensor& stored) const {
    if (part.dtype != stored.dtype || part.shape != stored.shape) {
      refuse(folder_,
             fmt::format("tensor {} is {} of shape {} in the checkpoint, expected {} of shape {}",
                         quoted_name(part.name), name_of(stored.dtype), format_shape(stored.shape),
                         name_of(part.dtype), format_shape(part.shape)),
             "resume with the model and the optimizers of the saved run");
    }
    if (part.granule != stored.granule) {
      refuse(folder_,
             fmt::format("tensor {} has blocks of {} elements in the checkpoint, expected {}",
                         quoted_name(part.name), stored.granule, part.granule),
             "resume with the optimizers of the saved run");
    }
    if (part.strides == stored.strides) return;
    refuse(folder_,
           fmt::format("tensor {} has strides {} in the checkpoint, expected {}",
                       quoted_name(part.name), format_shape(stored.strides),
                       format_shape(part.strides)),
           "build the model with the memory layout of the saved run");
  }

  void visit_stored(const StatePart& part,
                    const std::function<void(const CheckpointTensors::Piece&)>& visit) {
    stored_->visit(tensor_of_[&part - parts_.data()], part.begin, part.numel, visit);
  }

  TrainingState::Parts& state_;
  const std::filesystem::path folder_;
  const LoadStateOptions& options_;
  std::optional<CheckpointTensors> stored_;
  std::vector<std::pair<StateObject*, const ManifestObject*>> objects_;
  std::vector<StatePart> parts_;
  std::vector<int64_t> tensor_of_;  // for each part, the index of its tensor in the manifest
};

}  // namespace

LoadedState load_state(TrainingState::Parts& state, const std::filesystem::path& folder,
                       const LoadStateOptions& options) {
  for (const auto& each : state.objects) each->prepare();
  StateLoad load(state, folder, options);
  LoadedState loaded;
  loaded.outcome = run_on_all_ranks(state.mesh(), kReadingCheckpoint, [&] {
    const at::NoGradGuard no_grad;
    load.check();
  });
  if (loaded.outcome.failed()) return loaded;
  // Without this check, ranks of hosts that do not share the folder could load different
  // checkpoints.
  const CheckpointManifest& manifest = load.manifest();
  state.mesh().agree("checkpoint", {fmt::format("run {} checkpoint {} step {}", manifest.run,
                                                manifest.sequence, manifest.step)});
  loaded.changed = true;
  for (const auto& each : state.objects) {
    if (each->engine() != nullptr) each->engine()->context->hold.wait();
  }
  loaded.outcome = run_on_all_ranks(state.mesh(), kReadingCheckpoint, [&] {
    const at::NoGradGuard no_grad;
    load.fill();
  });
  if (loaded.outcome.failed()) return loaded;
  load.restore();
  // A training that loads only the weights is a new run, so it does not continue the sequence of
  // the checkpoint's run.
  if (!options.weights_only) {
    state.lineage = {.run = manifest.run,
                     .sequence = std::max(manifest.sequence, state.lineage.sequence),
                     .resumed_from = manifest.step};
  }
  loaded.report = {.step = manifest.step, .notes = std::move(load.notes)};
  return loaded;
}

LoadStateReport load(TrainingState& state, const std::filesystem::path& folder,
                     const LoadStateOptions& options) {
  LoadedState loaded = load_state(parts_of(state), folder, options);
  throw_on_all_ranks(parts_of(state).mesh(), loaded.outcome);
  return std::move(loaded.report);
}

}  // namespace fsdp
