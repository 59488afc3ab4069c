#include "engine/module_states.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/engine_parts.h"
#include "fsdp/error.h"
#include "libtorch/torch_compat.h"

namespace fsdp {
namespace {

using Flags = std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>>;

constexpr int64_t kSmallBytes = 64 * 1024;  // size of the fp32 statistics of 16384 channels

// These variables are thread-local, because thread ranks run forwards of the same program
// concurrently.
thread_local std::weak_ptr<EngineUnit> running_unit;
thread_local ModuleStates* recording = nullptr;

bool is_as(const Flags& flags) {
  return std::ranges::all_of(
      flags, [](const auto& each) { return each.first->is_training() == each.second; });
}

// Sets the training flags of modules. Module::train also sets the flags of the modules inside, so
// the loop repeats until each module has its flag.
void set(const Flags& flags) {
  for (size_t pass = 0; pass < flags.size() && !is_as(flags); ++pass) {
    for (const auto& [module, training] : flags) {
      if (module->is_training() != training) module->train(training);
    }
  }
}

// Writes the buffer without making a node or a new version. A graph that saved the buffer detects
// no change, so its backward does not throw.
void write(at::Tensor buffer, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_version;
  buffer.copy_(value);
}

}  // namespace

ModuleStates::Running::Running(std::weak_ptr<EngineUnit> running)
    : around_(std::exchange(running_unit, std::move(running))) {}
ModuleStates::Running::~Running() { running_unit = std::move(around_); }

std::shared_ptr<EngineUnit> ModuleStates::running() { return running_unit.lock(); }

ModuleStates::Recording::Recording(ModuleStates* states)
    : around_(std::exchange(recording, states)) {}
ModuleStates::Recording::~Recording() { recording = around_; }

void ModuleStates::begin(const EngineUnit& unit) {
  if (recording != nullptr) recording->remember(unit, /*is_inside=*/true);
}

void ModuleStates::remember_running() {
  running_ = running_unit;
  if (const auto unit = running_.lock()) remember(*unit, /*is_inside=*/false);
}

void ModuleStates::remember(const EngineUnit& unit, bool is_inside) {
  // Only the first forward of a unit is recorded, because later forwards find the buffers already
  // changed by the first run.
  if (has(unit)) return;
  units_.push_back(&unit);
  const auto remember_module = [&](const std::string& fqn, torch::nn::Module& module) {
    flags_.emplace_back(module.shared_from_this(), module.is_training());
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      const at::Tensor& buffer = item.value();
      if (!buffer.defined() || buffer.is_inference()) continue;
      // Every buffer is copied now. The engine knows only after the run which buffers the run has
      // written.
      buffers_.push_back({.fqn = join_fqn(fqn, item.key()),
                          .buffer = buffer,
                          .found = buffer.detach().clone(),
                          .version = torch_compat::version(buffer),
                          .is_inside = is_inside});
    }
  };
  unit.owner.model.for_each_own_module(unit, remember_module);
}

bool ModuleStates::has(const EngineUnit& unit) const {
  return std::ranges::find(units_, &unit) != units_.end();
}

void ModuleStates::settle() {
  for (KeptBuffer& each : buffers_) {
    // If the buffer's version did not change, the first run did not write the buffer, and the
    // second run finds the same value in it. The copy of a small buffer is kept ([Note: modules of
    // a recomputed function]).
    const int64_t version = torch_compat::version(each.buffer);
    const bool is_small = each.buffer.numel() * each.buffer.element_size() <= kSmallBytes;
    if (version == each.version && !is_small) each.found = at::Tensor();
    each.version = version;
  }
}

ModuleStates::Restored::Restored(const ModuleStates& states)
    : running_(states.running_), recording_(nullptr) {
  for (const KeptBuffer& each : states.buffers_) {
    // All checks run before the first write. If a check throws, every buffer is unchanged.
    if (each.found.defined() || !each.is_inside) continue;
    if (torch_compat::version(each.buffer) == each.version) continue;
    throw StateError(
        {.what = fmt::format("buffer '{}' was changed between a recomputed forward "
                             "and its backward",
                             each.fqn),
         .where = "fsdp::recompute",
         .cause = "backward runs the forward again, which would read the changed value",
         .hint = "change the buffer before the forward or after the backward, or do not recompute "
                 "the module that reads it"});
  }
  for (const KeptBuffer& each : states.buffers_) {
    if (!each.found.defined()) continue;
    now_.push_back({each.buffer, each.buffer.detach().clone(), torch_compat::version(each.buffer)});
    write(each.buffer, each.found);
  }
  if (is_as(states.flags_)) return;
  // Setting the training flag of a module also sets the flags of the modules inside it, so their
  // flags are saved too.
  for (const auto& [module, training] : states.flags_) {
    for (const auto& inside : module->modules()) {
      flags_.emplace_back(inside, inside->is_training());
    }
  }
  set(states.flags_);
}

ModuleStates::Restored::~Restored() {
  set(flags_);
  for (const Now& each : now_) {
    try {
      write(each.buffer, each.value);
      torch_compat::set_version(each.buffer, each.version);
    } catch (const std::exception&) {  // ignored: backward already throws another error
    }
  }
}

}  // namespace fsdp
