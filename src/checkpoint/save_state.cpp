#include "checkpoint/save_state.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "checkpoint/shard_content.h"
#include "fsdp/error.h"

namespace fsdp {

std::vector<StatePart> parts_for_save(TrainingState::Parts& state,
                                      const SaveStateOptions& options) {
  state.step = options.step;
  if (!options.weights_only) state.require_complete();
  for (const auto& each : state.objects) each->prepare();
  for (const auto& each : state.objects) each->require_saveable();
  std::vector<StatePart> parts = state.parts_to_save(options);
  state.saved_bytes = checkpoint_bytes(parts);
  return parts;
}

void warn_if_not_finite(const Mesh& mesh, const SaveTarget& target, int64_t step, bool finite) {
  if (finite || mesh.rank() != 0) return;
  mesh.warn({.what = fmt::format("the checkpoint of step {} has values that are not finite", step),
             .where = target.folder.string(),
             .hint = "--resume auto passes over it"});
}

Outcome save_state(TrainingState::Parts& state, const SaveTarget& target,
                   const SaveStateOptions& options, Disk& disk) {
  const std::vector<StatePart> parts = parts_for_save(state, options);
  // Work on the engines' streams may still write main state.
  for (const auto& each : state.objects) {
    if (each->engine() != nullptr) each->engine()->context->streams.finish();
  }
  const std::filesystem::path temporary = next_temporary(state, target.folder);
  const Mesh& mesh = state.mesh();
  bool has_nonfinite = false;
  Outcome outcome = run_on_all_ranks(
      mesh, kWritingCheckpoint,
      [&] {
        const at::NoGradGuard no_grad;
        if (mesh.rank() == 0) require_free_name(target);
        make_temporary(disk, temporary);
        const ShardContent content(parts);
        require_space(temporary, content.bytes());
        has_nonfinite =
            !write_shard(disk, temporary / shard_name(mesh.rank(), mesh.world_size()), content);
      },
      &has_nonfinite);
  const bool finite = !outcome.flagged;
  if (!outcome.failed()) {
    outcome = run_on_all_ranks(mesh, kWritingCheckpoint, [&] {
      if (mesh.rank() != 0) return;
      CheckpointManifest manifest = begin_manifest(state, parts, options);
      manifest.finite = finite;
      publish(disk, std::move(manifest), temporary, target, mesh.host());
    });
  }
  if (outcome.failed()) {
    if (mesh.rank() == 0) remove_folder(disk, temporary);
    return outcome;
  }
  ++state.lineage.sequence;
  warn_if_not_finite(mesh, target, options.step, finite);
  return outcome;
}

Outcome try_to_save(TrainingState& state, const std::filesystem::path& folder,
                    const SaveStateOptions& options) {
  return save_state(parts_of(state), {.folder = folder}, options, Disk::system());
}

void save(TrainingState& state, const std::filesystem::path& folder,
          const SaveStateOptions& options) {
  throw_on_all_ranks(parts_of(state).mesh(), try_to_save(state, folder, options));
}

}  // namespace fsdp
