// TrainingObjects: the optimizers, learning-rate schedulers, loss scaler and averages of an engine.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

enum class TrainingKind : uint8_t { kOptimizer, kScheduler, kLossScaler, kAverage };

class TrainingPlace;

// The objects that train with one engine. Thread-safe. Shared by the engine and by the
// TrainingPlace of each object, which may outlive the engine.
class TrainingObjects {
 public:
  // Returns the names of the objects, in the order of their construction.
  std::vector<std::string> names() const;
  // Returns the elements of `parameters` that no optimizer trains.
  std::vector<std::string> untrained(const std::vector<std::string>& parameters) const;
  // Returns the names of the objects whose TrainingPlace is not among `places`.
  std::vector<std::string> without(const std::vector<const TrainingPlace*>& places) const;
  // Returns true at the first call only. The first step of any optimizer makes this call.
  bool begin_steps() { return !std::exchange(has_stepped_, true); }
  // Sets whether an AveragedWeights has replaced the weights by averages.
  void set_averaged(bool averaged) { is_averaged_ = averaged; }
  // Throws StateError, which names `call`, if the weights are averages.
  void require_not_averaged(std::string_view call) const;

 private:
  friend class TrainingPlace;
  struct Entry {
    TrainingKind kind;
    std::string name;
    std::vector<std::string> parameters;  // FQNs that an optimizer trains, sorted
    const TrainingPlace* place;
  };
  mutable std::mutex mutex_;
  std::list<Entry> entries_;
  bool has_stepped_ = false;
  bool is_averaged_ = false;
};

// The entry of an object in TrainingObjects. It exists from the object's construction to its
// destruction.
class TrainingPlace {
 public:
  // `parameters` are the FQNs that an optimizer trains; empty for other objects.
  // Errors: StateError for a second loss scaler. StateError for an optimizer that shares a
  //   parameter with another optimizer; the error names both optimizers and the parameter.
  TrainingPlace(std::shared_ptr<TrainingObjects> objects, TrainingKind kind, std::string name,
                std::vector<std::string> parameters = {});
  ~TrainingPlace();
  TrainingPlace(const TrainingPlace&) = delete;
  TrainingPlace& operator=(const TrainingPlace&) = delete;

  const TrainingObjects& objects() const { return *objects_; }
  const std::string& name() const { return entry_->name; }

 private:
  const std::shared_ptr<TrainingObjects> objects_;
  std::list<TrainingObjects::Entry>::iterator entry_;
};

}  // namespace fsdp
