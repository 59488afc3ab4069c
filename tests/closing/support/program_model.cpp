#include "closing/support/program_model.h"

#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

// Makes a body, as an fsdp::Unit or as a plain module.
std::shared_ptr<torch::nn::Module> make_body(const std::shared_ptr<Scene>& scene, int part) {
  const auto index = static_cast<size_t>(part);
  if (scene->boundaries == Boundaries::kPolicy) {
    auto body = std::make_shared<BodyImpl>(scene, part);
    scene->units[index] = [plain = body.get()](Tensors given) {
      return plain->forward(std::move(given));
    };
    return body;
  }
  auto body = std::make_shared<UnitImpl<BodyImpl>>(scene, part);
  scene->units[index] = [unit = body.get()](Tensors given) { return unit->call(std::move(given)); };
  return body;
}

}  // namespace

BodyImpl::BodyImpl(std::shared_ptr<Scene> scene, int part)
    : scene_(std::move(scene)), part_(scene_->program->parts[part]) {
  for (int i = 0; i < part_.weights; ++i) {
    const uint64_t seed = 100 * part + 10 * i;
    const auto add = [&](const char* kind, Tensors& list, std::vector<int64_t> sizes,
                         uint64_t key) {
      list.push_back(register_parameter(kind + std::to_string(i), values(std::move(sizes), key),
                                        !part_.frozen));
    };
    add("weight", weights_, {i == 0 ? kVocabulary : kWidth, kWidth}, seed + 1);
    add("bias", biases_, {kWidth}, seed + 2);
  }
  const bool is_hollow = part_.weights == 0;
  if (is_hollow) dummy_ = register_parameter("dummy", at::empty({0}), !part_.frozen);
  if (scene_->boundaries == Boundaries::kPolicy) {
    gain_ = is_hollow ? dummy_
                      : register_parameter("gain", values({kWidth}, 100 * part + 7) * 0.25 + 1,
                                           !part_.frozen);
  }
  scale_ = register_buffer("scale", values({kWidth}, 100 * part + 8) * 0.25 + 1);
  const auto& parts = scene_->program->parts;
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].parent != part || !parts[i].is_unit) continue;
    register_module(parts[i].name, make_body(scene_, static_cast<int>(i)));
  }
}

Tensors BodyImpl::touched(Tensors tensors) const {
  if (!gain_.defined()) return tensors;
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.is_floating_point()) continue;
    tensor = dummy_.defined() ? tensor + dummy_.sum() : tensor * gain_;
  }
  return tensors;
}

// Reads and changes state that is neither an input nor a parameter.
at::Tensor BodyImpl::factor_of_state() {
  at::Tensor factor = scale_ * (is_training() ? 1 : 3) * (at::GradMode::is_enabled() ? 1 : 5);
  const at::NoGradGuard no_grad;
  scale_.mul_(0.5).add_(0.25);
  return factor;
}

Tensors BodyImpl::forward(Tensors inputs) {
  if (part_.has_holes) {
    CHECK_FALSE(inputs.back().defined());
    inputs.pop_back();
  }
  Tensors outputs = run_body(std::move(inputs));
  if (part_.has_holes) outputs.insert(outputs.begin(), at::Tensor());
  return outputs;
}

Tensors BodyImpl::run_body(Tensors inputs) {
  if (gain_.defined()) return touched(run(part_, touched(std::move(inputs))));
  const uint64_t begin = at::sequence_number::peek();
  Tensors outputs = run(part_, std::move(inputs));
  if (!scene_->plain || !at::GradMode::is_enabled()) return outputs;
  // If a unit returns an input, the engine adds a node for it, and that changes the order of sums.
  const auto is_made_here = [&](const at::TensorBase& tensor) {
    return tensor.grad_fn() && tensor.grad_fn()->sequence_nr() >= begin;
  };
  for (at::Tensor& output : outputs) {
    if (!output.requires_grad() || is_made_here(output)) continue;
    if (output.is_view() && is_made_here(output._base())) continue;
    output = output.view_as(output);
  }
  return outputs;
}

Tensors BodyImpl::run(const Part& part, Tensors registers) {
  for (const Op& op : part.ops) {
    const bool open = scene_->is_open(op.gate);
    const at::Tensor a = registers[op.args[0]];
    switch (op.kind) {
      case OpKind::kLinear:
        registers.push_back(
            open ? at::addmm(biases_[op.index], a, weights_[op.index].narrow(0, 0, kWidth))
                 : a * 0.5);
        break;
      case OpKind::kEmpty:
        registers.push_back(open ? a + dummy_.sum() : a * 0.5);
        break;
      case OpKind::kEmbed:
        registers.push_back(at::embedding(weights_[op.index], a));
        break;
      case OpKind::kAdd:
        registers.push_back(open ? a + registers[op.args[1]] : a * 0.5);
        break;
      case OpKind::kTanh:
        registers.push_back(a.tanh());
        break;
      case OpKind::kState:
        registers.push_back(a * factor_of_state());
        break;
      case OpKind::kView:
        registers.push_back(a.view({-1}).view(a.sizes()));
        break;
      case OpKind::kHalves: {
        const at::Tensor base = at::cat({a, registers[op.args[1]]});
        registers.push_back(base.narrow(0, 0, kRows));
        registers.push_back(base.narrow(0, kRows, kRows));
        break;
      }
      case OpKind::kInplace: {
        at::Tensor changed = a;
        changed.mul_(0.75);
        registers.push_back(std::move(changed));
        break;
      }
      case OpKind::kChoose:
        registers.push_back(open ? a : registers[op.args[1]]);
        break;
      case OpKind::kDetach:
        registers.push_back(open ? a : a.detach());
        break;
      case OpKind::kCall: {
        Tensors inputs;
        for (const int arg : op.args) inputs.push_back(registers[arg]);
        const size_t results = scene_->program->parts[op.index].outputs.size();
        const Tensors outputs = open ? call(op, inputs) : Tensors(results, a);
        registers.insert(registers.end(), outputs.begin(), outputs.end());
        break;
      }
    }
  }
  Tensors outputs;
  for (const int output : part.outputs) outputs.push_back(registers[output]);
  return outputs;
}

Tensors BodyImpl::call(const Op& op, Tensors inputs) {
  const Part& callee = scene_->program->parts[op.index];
  const SegmentForward forward = [this, index = op.index](Tensors given) {
    const Part& part = scene_->program->parts[index];
    if (part.is_unit) return scene_->units[index](touched(std::move(given)));
    return run(part, std::move(given));
  };
  if (callee.has_holes) inputs.emplace_back();
  Tensors outputs = op.recompute ? scene_->again(forward, inputs) : forward(std::move(inputs));
  if (callee.has_holes) {
    CHECK_FALSE(outputs.front().defined());
    outputs.erase(outputs.begin());
  }
  return outputs;
}

// The plain model has no engine, so this function restores buffers and flags for the second run.
Tensors Scene::again(const SegmentForward& forward, const Tensors& inputs) const {
  if (!plain) return recompute(forward, inputs);
  const auto run_plainly = [&model = *root, forward,
                            found = std::optional<Tensors>()](Tensors given) mutable {
    if (!found) {
      found = buffers_of(model);
      return forward(std::move(given));
    }
    const Tensors now = buffers_of(model);
    const bool trains = model.is_training();
    set_buffers(model, *found);
    model.train();
    Tensors outputs = forward(std::move(given));
    set_buffers(model, now);
    model.train(trains);
    return outputs;
  };
  return recompute(run_plainly, inputs);
}

Tensors buffers_of(const torch::nn::Module& model) {
  Tensors values;
  for (const at::Tensor& buffer : model.buffers()) values.push_back(buffer.clone());
  return values;
}

void set_buffers(const torch::nn::Module& model, const Tensors& values) {
  const at::NoGradGuard no_grad;
  const Tensors buffers = model.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) at::Tensor(buffers[i]).copy_(values[i]);
}

ProgramModel::ProgramModel(std::shared_ptr<const Program> program, Boundaries boundaries)
    : scene(std::make_shared<Scene>()) {
  scene->program = std::move(program);
  scene->boundaries = boundaries;
  scene->units.resize(scene->program->parts.size());
  root = make_body(scene, 0);
  scene->root = root.get();
}

Tensors ProgramModel::forward(Tensors inputs, bool recomputed) {
  SegmentForward whole = scene->units[0];
  if (recomputed) {
    whole = [this, keep = root, call = scene->units[0]](Tensors given) {
      const SegmentForward again = [keep, call](Tensors once_more) {
        return call(std::move(once_more));
      };
      return scene->again(again, given);
    };
  }
  return scene->in_forward ? scene->in_forward(whole, std::move(inputs)) : whole(std::move(inputs));
}

}  // namespace fsdp::testing
