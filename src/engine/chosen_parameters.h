// ChosenParameters: the parameters of an engine that one of its optimizers trains.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace fsdp {

// A set of an engine's parameters. The index of the unit and the index in the unit identify a
// parameter.
class ChosenParameters {
 public:
  // Chooses all parameters of the engine.
  ChosenParameters() = default;
  // `by_unit` has one flag per parameter of each unit; 1 means that the parameter is chosen.
  explicit ChosenParameters(std::vector<std::vector<char>> by_unit)
      : by_unit_(std::move(by_unit)) {}

  bool are_all() const { return by_unit_.empty(); }
  bool has(int unit, int parameter) const { return are_all() || by_unit_[unit][parameter] != 0; }
  bool any_of(int unit) const {
    return are_all() || std::ranges::find(by_unit_[unit], 1) != by_unit_[unit].end();
  }
  // Returns the indices of the unit's chosen parameters. Requires: not are_all().
  std::vector<int> of(int unit) const {
    std::vector<int> parameters;
    for (size_t i = 0; i < by_unit_[unit].size(); ++i) {
      if (by_unit_[unit][i]) parameters.push_back(static_cast<int>(i));
    }
    return parameters;
  }

 private:
  std::vector<std::vector<char>> by_unit_;
};

}  // namespace fsdp
