// UnitOrder predicts which units a pass needs next, from the record of the previous pass. It
// handles integers only.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "plan/pass_record.h"

namespace fsdp {

class UnitOrder {
 public:
  UnitOrder() = default;
  explicit UnitOrder(const PassRecord& record)
      : forward_{.units = record.forward_order()}, backward_{.units = record.backward_order()} {}

  void begin_forward() { forward_.next = 0; }
  void begin_backward() { backward_.next = 0; }
  void expect_backward(std::vector<int> units) { backward_ = {.units = std::move(units)}; }
  // Move the position in the predicted order past `unit`, which is needed now. If `unit` does not
  // occur after the position, the position stays.
  void needed_in_forward(int unit) { forward_.follow(unit); }
  void needed_in_backward(int unit) { backward_.follow(unit); }
  // Return the next `depth` distinct units. The current unit is not among them.
  std::vector<int> ahead_in_forward(int depth) const { return forward_.ahead(depth); }
  std::vector<int> ahead_in_backward(int depth) const { return backward_.ahead(depth); }

 private:
  struct Half {
    std::vector<int> units;
    size_t next = 0;

    void follow(int unit);
    std::vector<int> ahead(int depth) const;
  };
  Half forward_, backward_;
};

}  // namespace fsdp
