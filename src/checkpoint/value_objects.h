// The parts of a training state whose values are equal on all ranks: schedulers, a loss scaler, the
// position in the data, and values of the program. Also the states of the random generators.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/state_object.h"
#include "fsdp/sampler.h"
#include "optim/training_place_access.h"

namespace fsdp {

// A scheduler. Its kind is the name of its class.
template <class Scheduler>
class SchedulerObject final : public StateObject {
 public:
  SchedulerObject(std::string name, Scheduler& scheduler)
      : StateObject(std::move(name), RestoreOrder::kScheduler), scheduler_(scheduler) {}

  std::string kind() const override { return TrainingPlaceAccess::place(scheduler_).name(); }
  EngineParts* engine() const override { return &TrainingPlaceAccess::engine(scheduler_); }
  void append_places(std::vector<const TrainingPlace*>& places) const override {
    TrainingPlaceAccess::append_places(scheduler_, places);
  }
  StateValues values() const override;
  void check(const CheckpointManifest& manifest, const ManifestObject& stored,
             std::vector<std::string>& notes) const override;
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  Scheduler& scheduler_;
};

class ScalerObject final : public StateObject {
 public:
  ScalerObject(std::string name, LossScaler& scaler)
      : StateObject(std::move(name), RestoreOrder::kScaler), scaler_(scaler) {}

  std::string kind() const override { return "LossScaler"; }
  EngineParts* engine() const override { return TrainingPlaceAccess::engine(scaler_); }
  void append_places(std::vector<const TrainingPlace*>& places) const override {
    places.push_back(&TrainingPlaceAccess::place(scaler_));
  }
  StateValues values() const override;
  void check(const CheckpointManifest& manifest, const ManifestObject& stored,
             std::vector<std::string>& notes) const override;
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  LossScaler& scaler_;
};

// The position in the data: the epoch, and the number of its samples that the saved steps have
// used.
class CursorObject final : public StateObject {
 public:
  // `step` is the step of the save.
  CursorObject(std::string name, SampleCursor& cursor, const int64_t& step)
      : StateObject(std::move(name), RestoreOrder::kValue), cursor_(cursor), step_(step) {}

  std::string kind() const override { return "SampleCursor"; }
  StateValues values() const override;
  void check(const CheckpointManifest& manifest, const ManifestObject& stored,
             std::vector<std::string>& notes) const override;
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  SampleCursor& cursor_;
  const int64_t& step_;
};

// A number or a text of the program.
template <class Value>
class ValueObject final : public StateObject {
 public:
  ValueObject(std::string name, Value& value)
      : StateObject(std::move(name), RestoreOrder::kValue), value_(value) {}

  std::string kind() const override;
  StateValues values() const override { return {{"value", value_}}; }
  void check(const CheckpointManifest& manifest, const ManifestObject& stored,
             std::vector<std::string>& notes) const override;
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  Value& value_;
};

// A tensor of the program. Rank 0's elements are saved.
class TensorObject final : public StateObject {
 public:
  TensorObject(std::string name, at::Tensor& tensor, const Mesh& mesh)
      : StateObject(std::move(name), RestoreOrder::kValue), tensor_(tensor), mesh_(mesh) {}

  std::string kind() const override { return "Tensor"; }
  void append_parts(std::vector<StatePart>& parts) override;
  void append_stored_parts(const CheckpointManifest& manifest,
                           std::vector<StatePart>& parts) override;
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  StatePart part() const;

  at::Tensor& tensor_;
  const Mesh& mesh_;
  at::Tensor host_;
};

// The states of LibTorch's default generators, one row per rank: "random/cpu", and "random/cuda" if
// the engine computes on a GPU.
class RandomObject final : public StateObject {
 public:
  explicit RandomObject(EngineParts& engine)
      : StateObject("random", RestoreOrder::kRandom), engine_(engine) {}

  std::string kind() const override { return "Random"; }
  void append_parts(std::vector<StatePart>& parts) override;
  void check(const CheckpointManifest& manifest, const ManifestObject& stored,
             std::vector<std::string>& notes) const override;
  void append_stored_parts(const CheckpointManifest& manifest,
                           std::vector<StatePart>& parts) override;
  // If the checkpoint has no row for this rank, seeds the generators with seed + rank + 1000 ·
  // step.
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  struct Row {
    at::Generator generator;
    at::Tensor state;        // U8, on the host
    bool is_stored = false;  // the checkpoint has a row for this rank
  };
  std::vector<Row> rows_of_generators() const;
  void append_rows(int64_t world_size, std::vector<StatePart>& parts);

  EngineParts& engine_;
  std::vector<Row> rows_;
};

}  // namespace fsdp
