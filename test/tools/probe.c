#include "../../dynapipe_plugin/base/clock.h"
#include "../../dynapipe_plugin/plan/search.h"
#include "../case_problem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static CaseProblem cp; static MicrobatchProblem mp; static CaseReference ref;
int main(int argc, char** argv){
  int effort = argc>1?atoi(argv[1]):0; double geo=0; int n=0;
  for(int c=0; case_names[c]; c++){
    if(argc>2 && !strstr(case_names[c],argv[2])) continue;
    case_problem_load(&cp, case_names[c]); case_reference_load(&ref, case_names[c]);
    cp.request.batching=BATCHING_DYNAMIC; cp.request.layout=LAYOUT_RAGGED; cp.request.choose_stages=true;
    Arena arena={0};
    int64_t t0=clock_cpu_ns();
    stage_split_make(cp.request.stages, &cp.request, &cp.costs, cp.samples, cp.num_samples, 1);
    Status st = microbatch_problem_init(&mp,&cp.request,&cp.costs,cp.samples,cp.num_samples);
    if(st){printf("%s init: %s\n",case_names[c],status_message());continue;}
    Draft d; st=search_draft(&d,&mp,effort,0,&arena);
    if(st){printf("%s draft: %s\n",case_names[c],status_message());continue;}
    double ms=(double)d.makespan_ns/1e6; geo+=__builtin_log(ms/ref.makespan_ms); n++;
    printf("%-24s %8.0f / %8.0f = %.4f  %6.1f ms effort %d split",case_names[c],ms,ref.makespan_ms,ms/ref.makespan_ms,(double)(clock_cpu_ns()-t0)/1e6,0);
    for(int s=0;s<mp.P;s++) printf(" %d",d.stages[s].layer_end-d.stages[s].layer_begin);
    for(int r=0;r<mp.R;r++){ int M=d.replicas.begin[r+1]-d.replicas.begin[r], nm[3]={0}; for(int i=0;i<mp.P*M;i++) nm[d.replica[r].modes[i]]++;
      printf(" [M %d modes %d %d %d; %.0f ms]",M,nm[0],nm[1],nm[2],(double)d.replica[r].makespan_ns/1e6);}
    printf("\n");
    if(argc>3){ for(int r=0;r<mp.R;r++){ mp.request=&cp.request; memcpy(cp.request.stages,d.stages,sizeof d.stages); microbatch_problem_init(&mp,&cp.request,&cp.costs,cp.samples,cp.num_samples);
      int b=d.replicas.begin[r], M=d.replicas.begin[r+1]-b; ReplicaProblem rp; replica_problem_make(&rp,&mp,&d.list,d.replicas.mbs+b,M,d.replica[r].modes,&arena);
      PipeSchedule sc; PipeTimeline tl; replica_variant_build(&sc,&rp.pipe,d.replica[r].order,&d.replica[r].variant,&arena); pipe_simulate(&tl,&rp.pipe,&sc,&arena);
      printf("replica %d makespan %.1f\n",r,(double)tl.makespan_ns/1e6);
      for(int s=0;s<mp.P;s++){ printf(" stage %d busy %.1f%% peak %.1f of %.1f GB, in flight %d; first job %.0f last end %.0f | ",s,100.0*(double)tl.busy_ns[s]/(double)tl.makespan_ns,(double)tl.peak_bytes[s]/1e9,(double)rp.pipe.memory_limit_bytes[s]/1e9,d.replica[r].variant.rule.max_in_flight[s],(double)tl.job[s][0].begin_ns/1e6,(double)tl.job[s][sc.num_jobs[s]-1].end_ns/1e6);
        for(int m=0;m<M;m++){const PipeCost*c=pipe_cost(&rp.pipe,s,m); printf(" %.0f/%.0f/%.0f:%.0f%c",(double)c->job_ns[0]/1e6,(double)c->job_ns[1]/1e6,(double)c->job_ns[2]/1e6,(double)c->stored_bytes/1e9,"NSF"[c->mode]);} printf("\n");
        if(argc>4){for(int i=0;i<sc.num_jobs[s];i++) printf("%c%d ", "FBWR"[sc.jobs[s][i].kind],sc.jobs[s][i].mb); printf("\n");}
      } for(int m=0;m<M;m++){const Microbatch*q=&d.list.mbs[b+m]; printf(" (%ld: %ld+%ld)",q->shape.num_seqs,q->shape.enc_tokens,q->shape.dec_tokens);} printf("\n"); } }
  }
  printf("geomean %.4f\n",__builtin_exp(geo/n));
}
