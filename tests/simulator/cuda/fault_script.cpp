#include "simulator/cuda/fault_script.h"

#include <algorithm>

namespace fsdp::testing::sim {

bool is_sticky(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
}

void FaultScript::fail(std::string_view name, int64_t n, cudaError_t code) {
  faults_.push_back({.name = std::string(name), .at = calls(name) + n, .code = code});
}

void FaultScript::fail_any(int64_t n, cudaError_t code) {
  faults_.push_back({.name = {}, .at = all_ + n, .code = code});
}

void FaultScript::count(std::string_view name) {
  const auto found = calls_.find(name);
  found == calls_.end() ? void(calls_.emplace(name, 1)) : void(++found->second);
}

std::optional<cudaError_t> FaultScript::next(std::string_view name) {
  count(name);
  ++all_;
  const auto due = std::find_if(faults_.begin(), faults_.end(), [&](const Fault& fault) {
    return fault.name.empty() ? fault.at == all_ : fault.name == name && fault.at == calls(name);
  });
  if (due != faults_.end()) return due->code;
  return choice_ ? choice_(name) : std::nullopt;
}

int64_t FaultScript::calls(std::string_view name) const {
  const auto found = calls_.find(name);
  return found == calls_.end() ? 0 : found->second;
}

}  // namespace fsdp::testing::sim
