// TrainingObjects: the optimizers, learning-rate schedulers and loss scaler of an engine.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

enum class TrainingKind : uint8_t { kOptimizer, kScheduler, kLossScaler };

// The objects that train with one engine. Thread-safe. Shared by the engine and the objects'
// places, which may outlive it.
class TrainingObjects {
 public:
  // Returns their names, in the order of construction.
  std::vector<std::string> names() const;
  // Returns those of `parameters` that no optimizer trains.
  std::vector<std::string> untrained(const std::vector<std::string>& parameters) const;
  // Returns true the first time: no optimizer has made a step before.
  bool begin_steps() { return !std::exchange(has_stepped_, true); }

 private:
  friend class TrainingPlace;
  struct Entry {
    TrainingKind kind;
    std::string name;
    std::vector<std::string> parameters;  // FQNs of those that an optimizer trains, sorted
  };
  mutable std::mutex mutex_;
  std::list<Entry> entries_;
  bool has_stepped_ = false;
};

// An object's place among them, from the object's construction to its destruction.
class TrainingPlace {
 public:
  // `parameters`: FQNs of those that an optimizer trains.
  // Errors: StateError for a second loss scaler, and for an optimizer that shares a parameter with
  //   another one, naming both and the parameter.
  TrainingPlace(std::shared_ptr<TrainingObjects> objects, TrainingKind kind, std::string name,
                std::vector<std::string> parameters = {});
  ~TrainingPlace();
  TrainingPlace(const TrainingPlace&) = delete;
  TrainingPlace& operator=(const TrainingPlace&) = delete;

 private:
  const std::shared_ptr<TrainingObjects> objects_;
  std::list<TrainingObjects::Entry>::iterator entry_;
};

}  // namespace fsdp
