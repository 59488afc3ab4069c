// Which units a pass will need next, by the pass before it. Integers only.
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
  // `unit` is needed now: the place in the order moves behind it, or stays if it is not expected
  // any more.
  void needed_in_forward(int unit) { forward_.follow(unit); }
  void needed_in_backward(int unit) { backward_.follow(unit); }
  // The next `depth` distinct other units.
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
