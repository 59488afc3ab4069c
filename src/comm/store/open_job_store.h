// The store of a job on several hosts.
#pragma once

#include <memory>

#include "base/descriptor.h"
#include "base/environment.h"
#include "comm/store/key_value_store.h"
#include "comm/store/master_address.h"
#include "comm/store/store_token.h"
#include "fsdp/mesh.h"

namespace fsdp {

// Opens the store at MASTER_ADDR and MASTER_PORT. If the launcher's agent serves a store there,
// `open_agent_store` connects to it; it is null in programs that do not link LibTorch. Otherwise
// the store is a TokenStore, which fsdp-run or rank 0's process serves at the address of
// MASTER_ADDR alone. Without a token (FSDP_NO_TOKEN=1), rank 0 sends a warning to options.on_event.
// Errors: InvalidArgument (78) if MASTER_ADDR or MASTER_PORT is not set, if the address or the port
//   cannot be used, or if `open_agent_store` is needed and null. Also the errors of
//   `open_agent_store`, read_token and TokenStore.
std::unique_ptr<KeyValueStore> open_job_store(const LaunchEnvironment& environment,
                                              const MeshOptions& options,
                                              OpenStore open_agent_store);

// Listens at the first of these addresses that belongs to this host. Tries again for two seconds if
// the port is in use, because an earlier job may be ending. Errors: InvalidArgument (78).
Descriptor listen_at_master(const MasterAddress& master);
// Returns the warning of a process that serves a store without a token.
ErrorText warning_without_token(const MasterAddress& master, const StoreToken& token);

}  // namespace fsdp
