// Includes all headers that a training program needs.
#pragma once

#include <fsdp/agreement.h>
#include <fsdp/batch_transfer.h>
#include <fsdp/callback.h>
#include <fsdp/checkpoint.h>
#include <fsdp/checkpoints.h>
#include <fsdp/engine.h>
#include <fsdp/error.h>
#include <fsdp/loss_scaler.h>
#include <fsdp/lr_scheduler.h>
#include <fsdp/memory.h>
#include <fsdp/mesh.h>
#include <fsdp/mesh_values.h>
#include <fsdp/optim.h>
#include <fsdp/options.h>
#include <fsdp/prefetcher.h>
#include <fsdp/program.h>
#include <fsdp/program_text.h>
#include <fsdp/recompute.h>
#include <fsdp/run_options.h>
#include <fsdp/sampler.h>
#include <fsdp/sync_batch_norm.h>
#include <fsdp/trace.h>
#include <fsdp/training_state.h>
#include <fsdp/unit.h>
#include <fsdp/unit_policy.h>
