// The purpose of a call into a library, for messages.
#pragma once

#include <string>
#include <string_view>

#include "comm/job/collective_record.h"

namespace fsdp {

// The purpose of a call: a collective, or a text. A CallPlace refers to the constructor's argument,
// which must outlive it. The description is composed only when it is read.
class CallPlace {
 public:
  CallPlace(const CollectiveRecord& record) : record_(&record) {}  // NOLINT: implicit on purpose
  CallPlace(std::string_view text) : text_(text) {}                // NOLINT
  std::string text() const { return record_ == nullptr ? std::string(text_) : describe(*record_); }
  const CollectiveRecord* record() const { return record_; }

 private:
  const CollectiveRecord* record_ = nullptr;
  std::string_view text_;
};

}  // namespace fsdp
