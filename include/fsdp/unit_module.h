// Overrides of torch::nn::Module's virtual functions for units.
#pragma once

#include <fsdp/unit_base.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

namespace fsdp {

// A module M that is a unit. M may declare functions with the same names but other arguments
// (`save(path)`). Such functions of M stay visible. If they hide the functions of torch::nn::Module
// from M's users, the overrides below call those of torch::nn::Module.
template <class M>
class UnitModule : public M, public UnitBase {
 public:
  using M::M;
  torch::nn::Module& as_module() override { return *this; }

  using M::load;
  using M::save;
  using M::to;
  using M::zero_grad;

  // Clears the engine's gradients of this unit and of the units inside it. Also clears `.grad` of
  // parameters that the engine ignores.
  void zero_grad(bool set_to_none = true) override {
    if (this->attached()) this->zero_gradients();
    if constexpr (requires { this->M::zero_grad(set_to_none); }) {
      this->M::zero_grad(set_to_none);
    } else {
      torch::nn::Module::zero_grad(set_to_none);
    }
  }

  // Errors: StateError if an engine owns the unit.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    move_to(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override { move_to(dtype, non_blocking); }
  void to(torch::Device device, bool non_blocking = false) override {
    move_to(device, non_blocking);
  }

  // Saves values in param_dtype.
  // Errors: StateError if an engine owns the unit and the parameters are not whole. Parameters are
  //   whole inside fsdp::Gathered.
  void save(torch::serialize::OutputArchive& archive) const override {
    this->require_whole("saved");
    if constexpr (requires { this->M::save(archive); }) {
      this->M::save(archive);
    } else {
      torch::nn::Module::save(archive);
    }
  }
  void load(torch::serialize::InputArchive& archive) override {
    this->require_whole("loaded");
    if constexpr (requires { this->M::load(archive); }) {
      this->M::load(archive);
    } else {
      torch::nn::Module::load(archive);
    }
  }

 protected:
  struct CloneOf {};
  UnitModule(CloneOf, const M& plain) : M(plain) {}

 private:
  template <class... Target>
  void move_to(const Target&... target) {
    if (this->attached()) this->refuse_move();
    if constexpr (requires { this->M::to(target...); }) {
      this->M::to(target...);
    } else {
      torch::nn::Module::to(target...);
    }
  }
};

}  // namespace fsdp
